package schema

import "time"

// ParseDateTime reads a date-time as RFC 3339 has it, and as every schema of format date-time takes it:
// date, "T" or "t", time, and "Z", "z" or an offset of hours and minutes. The day exists in its month;
// hours are 0 to 23; any number of digits may follow the seconds. A second may be 60 where the time is
// 23:59 in UTC, on any day, since leap seconds are announced only months ahead. That is both more and
// less than package time takes.
//
// The time is in UTC. Digits beyond nanoseconds are dropped, and a leap second is the first second of
// the next minute, since [time.Time] has none. ok is false for any other text.
func ParseDateTime(s string) (t time.Time, ok bool) {
	p, ok := dateTimeOf(s)
	if !ok {
		return time.Time{}, false
	}
	t = time.Date(p.year, time.Month(p.month), p.day, p.hour, p.minute, p.second, p.nanos, time.UTC)
	return t.Add(-time.Duration(p.offset) * time.Minute), true
}

// dateTime is a date-time in parts.
type dateTime struct {
	year, month, day, hour, minute, second int
	nanos                                  int
	offset                                 int // minutes east of UTC
}

func dateTimeOf(s string) (p dateTime, ok bool) {
	// 0123456789012345678
	// 2030-09-01T00:05:00 and more
	const fixed = len("2030-09-01T00:05:00")
	if len(s) <= fixed ||
		s[4] != '-' || s[7] != '-' || s[10]|0x20 != 't' || s[13] != ':' || s[16] != ':' {
		return p, false
	}
	var okay [6]bool
	p.year, okay[0] = decimal(s[0:4])
	p.month, okay[1] = decimal(s[5:7])
	p.day, okay[2] = decimal(s[8:10])
	p.hour, okay[3] = decimal(s[11:13])
	p.minute, okay[4] = decimal(s[14:16])
	p.second, okay[5] = decimal(s[17:19])
	if okay != [6]bool{true, true, true, true, true, true} ||
		p.month < 1 || p.month > 12 || p.day < 1 || p.day > daysIn(p.year, p.month) ||
		p.hour > 23 || p.minute > 59 || p.second > 60 {
		return p, false
	}
	s = s[fixed:]
	if s[0] == '.' {
		n := 1
		scale := 100_000_000
		for n < len(s) && s[n]-'0' <= 9 {
			p.nanos += int(s[n]-'0') * scale
			scale /= 10
			n++
		}
		if n == 1 || n == len(s) {
			return p, false
		}
		s = s[n:]
	}
	switch {
	case len(s) == 1 && s[0]|0x20 == 'z':
	case len(s) == len("+02:00") && (s[0] == '+' || s[0] == '-') && s[3] == ':':
		hours, okH := decimal(s[1:3])
		minutes, okM := decimal(s[4:6])
		if !okH || !okM || hours > 23 || minutes > 59 {
			return p, false
		}
		p.offset = hours*60 + minutes
		if s[0] == '-' {
			p.offset = -p.offset
		}
	default:
		return p, false
	}
	const day = 24 * 60
	if p.second == 60 && (p.hour*60+p.minute-p.offset+day)%day != day-1 {
		return p, false
	}
	return p, true
}

// decimal reads ASCII digits.
func decimal(s string) (n int, ok bool) {
	for i := range len(s) {
		c := s[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + int(c)
	}
	return n, true
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}
