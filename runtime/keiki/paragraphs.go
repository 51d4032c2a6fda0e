package keiki

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// A splitter makes messages of a text that comes in pieces (keiki.md, "Answering" and "Settled readings").
//
// A blank line, which is one of white space alone, ends a message; under whole nothing does but the end of
// the text. "\r\n" is a line end like "\n". Blank lines within fenced code end nothing: a fence is a line
// of three or more backticks or tildes behind at most three spaces, as CommonMark has it, outside lists and
// quotes. White space around a message is dropped, and what is white space alone is no message.
//
// No message is longer than limit bytes. What would be is cut at its last line end that lets the rest fit,
// where there is none at the end of a word, where there is none between two characters. A cut within fenced
// code closes the block and opens it again, with the same fence and info string, in the next message. A
// line longer than a quarter of the limit is taken for text, not for the opening of a block; and white space
// that fills a message may be dropped from a block that has nothing else in it.
//
// What the messages are depends on the text alone, not on how it was cut into pieces: a piece may end within
// a character or between "\r" and "\n". A splitter holds at most some three times limit bytes, and is for one
// goroutine.
type splitter struct {
	whole bool
	limit int

	mem []byte // where buf lives
	buf []byte // from the beginning of the message in the making to the end of what was fed
	fed int64  // how much was fed, which is where buf ends in the text

	// Offsets into buf.
	n     int   // how much of buf has been looked at
	solid int   // behind the last character so far that is not white space
	line  int   // where the line in the making begins
	place place // the last line end at which the message can be cut

	indent int  // how much white space was dropped in front of the line, a tab counting as 4
	rest   bool // the line is what was left of one that was cut

	fence fence // the block that is open
	code  int   // offset into buf of the block's first line
	again bool  // the block was opened again by us, after a cut
	gap   int   // how much was dropped behind the line that opens the block
}

// A place is where a message can be cut: in front of the line end at end, the rest beginning at next.
type place struct {
	ok        bool
	end, next int
	fenced    bool // within a block
}

// A fence is the line that opens a block of code, without white space around it; the zero fence is none.
type fence struct {
	marks string // the backticks or tildes
	open  string // the whole line
}

func (f fence) isOpen() bool { return f.marks != "" }

const (
	minLimit = 64 // below it there is no room for fences
	// maxRun is how much white space is waited through, in bytes, to see whether a message that is full ends
	// with it.
	maxRun = 256
	// markRun is how many backticks or tildes make a fence.
	markRun = 3
)

// newSplitter returns a splitter for messages of at most limit bytes, or 64 if that is more. whole says that
// blank lines end no message.
func newSplitter(whole bool, limit int) *splitter {
	return &splitter{whole: whole, limit: max(limit, minLimit)}
}

// feed takes the next piece of the text and calls emit for each message that it completes. end is the offset
// in the text behind the message's last character; the fence that closes a block which was cut is not part
// of the text, and does not count. A message is complete with the line end of the blank line behind it, or
// as soon as it is certain that it must be cut. emit's error ends feed, and the splitter is not to be used
// afterwards. p is not kept.
func (s *splitter) feed(p []byte, emit func(message string, end int64) error) error {
	for len(p) > 0 {
		k := min(len(p), s.most()-len(s.buf))
		s.take(p[:k])
		p = p[k:]
		if err := s.scan(false, emit); err != nil {
			return err
		}
	}
	return nil
}

// finish says that the text has ended, and gives what is left. A block that was never closed stays open.
// What is fed then is the beginning of something new.
func (s *splitter) finish(emit func(message string, end int64) error) error {
	if err := s.scan(true, emit); err != nil {
		return err
	}
	message, end := string(s.buf[:s.solid]), s.offset(s.solid)
	empty := s.solid == 0 || s.again && s.fence.isOpen() && (s.solid <= s.code || s.closed(s.n) && blank(s.buf[s.code:s.line]))
	s.discard()
	if empty {
		return nil
	}
	return emit(message, end)
}

// discard drops what has not become a message. Offsets go on.
func (s *splitter) discard() {
	s.advance(len(s.buf))
	s.rest = false
}

// most is the most that is ever needed of a text to decide on a message.
func (s *splitter) most() int { return 2*s.limit + maxRun + utf8.UTFMax }

// take appends p to buf.
func (s *splitter) take(p []byte) {
	s.fed += int64(len(p))
	if need := len(s.buf) + len(p); need > cap(s.buf) {
		if need > cap(s.mem) {
			s.mem = make([]byte, 0, min(s.most(), max(512, 2*need)))
		}
		s.buf = append(s.mem[:0], s.buf...) // copy sees to overlapping
	}
	s.buf = append(s.buf, p...)
}

// offset is where in the text a message that ends at buf[i] ends.
func (s *splitter) offset(i int) int64 {
	at := s.fed - int64(len(s.buf)-i)
	if i <= s.code {
		at -= int64(s.gap)
	}
	return at
}

// advance begins a new message at buf[i], outside of code, in the middle of a line or at its beginning.
func (s *splitter) advance(i int) {
	s.buf = s.buf[i:]
	s.n, s.solid, s.line, s.code, s.gap = 0, 0, 0, 0, 0
	s.indent = 0
	s.place = place{}
	s.fence = fence{}
	s.again = false
}

// room is how long the message may become, without what closes the block that is open.
func (s *splitter) room() int {
	if s.fence.isOpen() {
		return s.limit - len("\n") - len(s.fence.marks)
	}
	return s.limit
}

// scan looks at buf as far as it can be decided what becomes of it. Everything it decides is decided by
// what stands in the text, never by where buf ends for the moment; final says that nothing follows.
func (s *splitter) scan(final bool, emit func(string, int64) error) error {
	for {
		if s.n == 0 {
			s.skip()
		}
		if s.n > s.room() { // by a line end, or because a block was opened that has to be closed
			if err := s.full(emit); err != nil {
				return err
			}
			continue
		}
		end := len(s.buf)
		if !final {
			end -= unfinished(s.buf[s.n:])
		}
		if s.n >= end {
			return nil
		}
		stop := end
		newline := bytes.IndexByte(s.buf[s.n:end], '\n')
		if newline >= 0 {
			stop = s.n + newline
		}
		if stop > s.room() {
			// The last character that is too much begins at e.
			e := s.room()
			for i := 1; i < utf8.UTFMax && e > s.n && !utf8.RuneStart(s.buf[e]); i++ {
				e--
			}
			s.look(e)
			word := bytes.TrimLeftFunc(s.buf[e:stop], unicode.IsSpace)
			j := stop - len(word)
			long := j-e > maxRun
			if long {
				for j = e; ; { // to the last place that has white space behind it for certain
					_, size := utf8.DecodeRune(s.buf[j:])
					if j+size-e > maxRun {
						break
					}
					j += size
				}
			}
			if long || len(word) > 0 {
				if !final && newline < 0 && !long && len(word) < markRun {
					return nil // it might be a fence, which no rest should begin with
				}
				if err := s.cut(e, j, long, emit); err != nil {
					return err
				}
				continue
			}
			// White space alone is too much, which does not count if it is at the message's end.
			if newline < 0 {
				if final {
					s.n = end
				}
				return nil
			}
		}
		s.look(stop)
		if newline >= 0 {
			if err := s.endLine(stop, emit); err != nil {
				return err
			}
		}
	}
}

// unfinished is how many bytes at the end of p begin a character that is not complete.
func unfinished(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if c := p[len(p)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(p[len(p)-i:]) {
				return i
			}
			break
		}
	}
	return 0
}

// skip drops white space in front of a message.
func (s *splitter) skip() {
	i := 0
	for i < len(s.buf) {
		c, size := utf8.DecodeRune(s.buf[i:])
		if !unicode.IsSpace(c) {
			break
		}
		switch c {
		case '\n':
			s.indent, s.rest = 0, false
		case ' ':
			s.indent = min(s.indent+1, 4)
		default: // more than any fence has
			s.indent = 4
		}
		i += size
	}
	s.buf = s.buf[i:]
}

// look goes on to offset i, within the line.
func (s *splitter) look(i int) {
	if text := bytes.TrimRightFunc(s.buf[s.n:i], unicode.IsSpace); len(text) > 0 {
		s.solid = s.n + len(text)
	}
	s.n = i
}

func blank(text []byte) bool { return len(bytes.TrimSpace(text)) == 0 }

// endLine goes beyond the line end at offset stop.
func (s *splitter) endLine(stop int, emit func(string, int64) error) error {
	line := s.buf[s.line:stop]
	next := stop + 1
	end := len(bytes.TrimSuffix(s.buf[:stop], []byte("\r")))
	switch {
	case s.fence.isOpen() && s.closed(stop):
		if s.again && blank(s.buf[s.code:s.line]) {
			s.advance(next) // the block had ended with the message before
			return nil
		}
		s.fence = fence{}
		s.place = place{true, s.solid, next, false}
	case s.fence.isOpen():
		if end > s.room() {
			end = s.solid
		}
		if s.solid > s.code { // a block is not cut before it has anything in it
			s.place = place{true, end, next, true}
		}
	case !s.whole && blank(line):
		message, at := string(s.buf[:s.solid]), s.offset(s.solid)
		s.advance(next)
		s.rest = false
		return emit(message, at)
	default:
		if f := opening(line, s.indent); f.isOpen() && !s.rest && len(line) <= s.limit/4 {
			s.fence, s.code, s.again, s.gap = f, next, false, 0
		} else {
			s.place = place{true, s.solid, next, false}
		}
	}
	s.n, s.line, s.indent, s.rest = next, next, 0, false
	return nil
}

// full ends a message that can take nothing more, at the beginning of a line.
func (s *splitter) full(emit func(string, int64) error) error {
	switch {
	case !s.fence.isOpen():
		return s.end(s.solid, s.n, false, emit)
	case s.place.ok:
		return s.end(s.place.end, s.place.next, s.place.fenced, emit)
	}
	s.empty(s.n)
	return nil
}

// cut ends a message that can take nothing more, within a line. Everything up to e fits, and the next word
// begins or goes on at j; where there is a long run of white space instead, j is in it.
func (s *splitter) cut(e, j int, long bool, emit func(string, int64) error) error {
	fenced := s.fence.isOpen()
	hollow := fenced && s.solid <= s.code
	switch {
	case s.place.ok && (fenced || !long || s.mayOpen()):
		return s.end(s.place.end, s.place.next, s.place.fenced, emit)
	case hollow:
		s.empty(e)
		s.rest = true
		return nil
	}
	w, x := s.solid, j
	if fenced || !long {
		w, x = s.wordEnd(e, j)
	}
	err := s.end(w, x, fenced, emit)
	s.rest = true
	return err
}

// mayOpen tells whether the line in the making might open a block.
func (s *splitter) mayOpen() bool {
	return !s.rest && s.solid > s.line && opening(s.buf[s.line:s.solid], s.indent).isOpen()
}

// wordEnd finds where a word ends (w) and the next begins (x), as late as what is in front of e allows. If
// there is but one word, both are in the middle of it. A rest that would begin with a fence, and a line of
// code that would end as one, are avoided where there is another place.
func (s *splitter) wordEnd(e, j int) (w, x int) {
	from, fenced := 0, s.fence.isOpen()
	if fenced {
		from = s.code
	}
	w, x = s.solid, j
	if j == e {
		w, x = previousWord(s.buf, from, e)
	}
	if last, next := w, x; last > from {
		for w > from {
			if !marked(s.buf[x:]) && (!fenced || !s.closed(w)) {
				return w, x
			}
			w, x = previousWord(s.buf, from, w)
		}
		if !fenced || j > e {
			return last, next
		}
	}
	for w = e; w > from; {
		if !marked(s.buf[w:]) {
			return w, w
		}
		_, size := utf8.DecodeLastRune(s.buf[from:w])
		w -= size
	}
	return e, e
}

// previousWord finds the last white space in b[from:end]: w is where the word before it ends, x where the
// one behind it begins. w is from where there is none.
func previousWord(b []byte, from, end int) (w, x int) {
	i := bytes.LastIndexFunc(b[from:end], unicode.IsSpace)
	if i < 0 {
		return from, from
	}
	_, size := utf8.DecodeRune(b[from+i:])
	return from + len(bytes.TrimRightFunc(b[from:from+i], unicode.IsSpace)), from + i + size
}

// end emits what is in front of w and goes on with x; fenced says that both are within the block.
func (s *splitter) end(w, x int, fenced bool, emit func(string, int64) error) error {
	at := s.offset(w)
	if !fenced {
		message := string(s.buf[:w])
		s.advance(x)
		s.rest = false
		return emit(message, at)
	}
	f := s.fence
	message := string(s.buf[:w]) + "\n" + f.marks
	// The opening line is among what was emitted, so there is room for it in front of x.
	again := f.open + "\n"
	s.advance(x - len(again))
	copy(s.buf, again)
	s.fence, s.again, s.rest = f, true, false
	s.n, s.solid, s.line, s.code = len(again), len(f.open), len(again), len(again)
	return emit(message, at)
}

// empty drops what is in a block up to offset e, which is white space. The message begins with the block.
func (s *splitter) empty(e int) {
	f, again, rest, solid, k, gap := s.fence, s.again, s.rest, s.solid, s.code, s.gap+e-s.code
	copy(s.buf[e-k:e], s.buf[:k])
	s.advance(e - k)
	s.fence, s.again, s.rest = f, again, rest
	s.n, s.solid, s.line, s.code, s.gap = k, solid, k, k, gap
}

// opening reads a line that may open a block of code, without its line end. indent is what was dropped in
// front of it.
func opening(line []byte, indent int) fence {
	text := bytes.TrimLeft(line, " ")
	if indent+len(line)-len(text) > 3 || !marked(text) {
		return fence{}
	}
	text = bytes.TrimRight(text, " \t\r")
	mark := text[:1]
	info := bytes.TrimLeft(text, string(mark))
	if mark[0] == '`' && bytes.IndexByte(info, '`') >= 0 {
		return fence{} // code within a line of text
	}
	open := string(text)
	return fence{marks: open[:len(text)-len(info)], open: open}
}

// marked tells whether text begins with a fence.
func marked(text []byte) bool {
	return bytes.HasPrefix(text, []byte("```")) || bytes.HasPrefix(text, []byte("~~~"))
}

// closed tells whether the line in the making, up to stop, closes the block that is open.
func (s *splitter) closed(stop int) bool {
	line := s.buf[s.line:stop]
	text := bytes.TrimLeft(line, " ")
	if s.rest || len(line)-len(text) > 3 {
		return false
	}
	text = bytes.TrimRight(text, " \t\r")
	return len(text) >= len(s.fence.marks) && len(bytes.Trim(text, s.fence.marks[:1])) == 0
}
