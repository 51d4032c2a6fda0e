package scan

import (
	"math"
	"strconv"
)

// A decimal is a number's exact value: the digits text[first:last+1], a decimal point among them left
// out, times ten to the power of exp. Zero has no digits.
type decimal struct {
	negative    bool
	digits      int // how many
	first, last int
	exp         int64
}

// exponentLimit is far beyond the length of any text, so that an exponent which is cut to it still
// outweighs all the digits there can be.
const exponentLimit = 1 << 40

// parse reads text, which [Number] has accepted.
func parse(text []byte) decimal {
	var d decimal
	i := 0
	if text[0] == '-' {
		d.negative = true
		i = 1
	}
	d.first, d.last = -1, -1
	seen := 0                   // digits so far
	firstAt, lastAt := 0, 0     // which of them are the first and the last that are not 0
	beforePoint, point := 0, -1 // digits before the point, and where it is
	for ; i < len(text); i++ {
		c := text[i]
		if c == '.' {
			point = i
			beforePoint = seen
			continue
		}
		if !isDigit(c) {
			break
		}
		seen++
		if c != '0' {
			if d.first < 0 {
				d.first, firstAt = i, seen
			}
			d.last, lastAt = i, seen
		}
	}
	if d.first < 0 {
		return decimal{negative: d.negative}
	}
	if point < 0 {
		beforePoint = seen
	}
	d.digits = lastAt - firstAt + 1
	if i < len(text) { // e or E
		i++
		minus := text[i] == '-'
		if minus || text[i] == '+' {
			i++
		}
		for ; i < len(text); i++ {
			d.exp = min(d.exp*10+int64(text[i]-'0'), exponentLimit)
		}
		if minus {
			d.exp = -d.exp
		}
	}
	d.exp += int64(beforePoint - lastAt)
	return d
}

func (d decimal) integer() bool { return d.digits == 0 || d.exp >= 0 }

// Integer reports whether text, which [Number] has accepted, is an integer, however it is spelled:
// 40, 40.0 and 4e1 are the same one. Beyond the range of an int64, n is its nearest end.
func Integer(text []byte) (n int64, ok bool) {
	d := parse(text)
	if !d.integer() {
		return 0, false
	}
	if d.digits == 0 {
		return 0, true
	}
	limit := uint64(math.MaxInt64)
	if d.negative {
		limit++
	}
	var u uint64
	full := int64(d.digits)+d.exp > 19
	for _, c := range text[d.first : d.last+1] {
		if full {
			break
		}
		if c != '.' {
			u = u*10 + uint64(c-'0')
		}
	}
	for range d.exp {
		if full {
			break
		}
		u *= 10
	}
	if full || u > limit {
		u = limit
	}
	if d.negative {
		return int64(-u), true
	}
	return int64(u), true
}

// Plain returns text, which [Number] has accepted, or a number that stands for it where text is one
// that exact arithmetic must not be given: with thousands of digits, or an exponent of thousands. What
// stands for it has the same sign, is an integer if text is, and has the same value up to 1,000 digits
// before or behind the point and 800 in all; beyond, it is another number of that size.
func Plain(text []byte) string {
	if len(text) <= 20 {
		simple := true
		for _, c := range text {
			simple = simple && c|0x20 != 'e'
		}
		if simple {
			return string(text)
		}
	}
	const (
		keep    = 800
		largest = 1000
	)
	d := parse(text)
	if d.digits == 0 {
		return "0"
	}
	out := make([]byte, 0, min(d.digits, keep+1)+8)
	if d.negative {
		out = append(out, '-')
	}
	n := 0
	for _, c := range text[d.first : d.last+1] {
		if n == keep {
			// The last digit is not 0, so something is always cut off.
			out = append(out, '1')
			n++
			break
		}
		if c != '.' {
			out = append(out, c)
			n++
		}
	}
	size := int64(d.digits) + d.exp // the number is 0.ddd × 10^size
	if d.exp >= 0 {
		size = min(size, largest)
	} else {
		size = max(size, -largest)
		size = min(size, int64(n)-1)
	}
	out = append(out, 'e')
	return string(strconv.AppendInt(out, size-int64(n), 10))
}
