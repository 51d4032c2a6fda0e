package keiki

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// The splitter is not exported: what it does is seen in the messages of a turn, but not how pieces, limits
// and offsets meet. So these tests are within the package.

// A cutting is one message of a text and where it ends there.
type cutting struct {
	Text string
	End  int64
}

// split feeds text in pieces, cut where next says, and gives all messages.
func split(tb testing.TB, whole bool, limit int, text string, next func(rest int) int) []cutting {
	tb.Helper()
	var got []cutting
	emit := func(message string, end int64) error {
		got = append(got, cutting{message, end})
		return nil
	}
	s := newSplitter(whole, limit)
	for rest := text; rest != ""; {
		n := next(len(rest))
		p := []byte(rest[:n])
		if err := s.feed(p, emit); err != nil {
			tb.Fatal(err)
		}
		for i := range p {
			p[i] = 0xff // a piece is not kept
		}
		rest = rest[n:]
		if most := s.most(); cap(s.mem) > most || cap(s.buf) > most {
			tb.Fatalf("the splitter holds %d bytes under a limit of %d", cap(s.mem), limit)
		}
	}
	if err := s.finish(emit); err != nil {
		tb.Fatal(err)
	}
	return got
}

func inOne(rest int) int   { return rest }
func inBytes(int) int      { return 1 }
func inPairs(rest int) int { return min(2, rest) }

func inRandom(seed uint64) func(int) int {
	r := rand.New(rand.NewPCG(seed, 1))
	return func(rest int) int { return 1 + r.IntN(min(rest, 1+r.IntN(200))) }
}

func texts(list []cutting) []string {
	got := make([]string, len(list))
	for i, c := range list {
		got[i] = c.Text
	}
	return got
}

func TestSplitter(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64)
	for _, test := range []struct {
		name, text string
		whole      bool
		want       []string
	}{
		{name: "nothing", text: ""},
		{name: "white space", text: " \n\t\r\n\n \u3000\n"},
		{name: "one line", text: "a", want: []string{"a"}},
		{name: "one paragraph", text: "a\nb\n", want: []string{"a\nb"}},
		{name: "two paragraphs", text: "a\n\nb", want: []string{"a", "b"}},
		{name: "many blank lines", text: "\n\n\na\n\n\n\nb\n\n\n", want: []string{"a", "b"}},
		{name: "spaces are blank", text: "a\n  \t \nb", want: []string{"a", "b"}},
		{name: "other white space is blank", text: "a\n\u00a0\u3000\nb", want: []string{"a", "b"}},
		{name: "carriage returns", text: "a\r\nb\r\n\r\nc\r\n", want: []string{"a\r\nb", "c"}},
		{name: "a carriage return alone ends no line", text: "a\r\rb", want: []string{"a\r\rb"}},
		{name: "edges", text: "  a b \n   c  \n\n\td\t", want: []string{"a b \n   c", "d"}},
		{name: "edges of other white space", text: "\u3000a\u3000\n\n\u2028b\u0085", want: []string{"a", "b"}},
		{name: "no white space but invisible", text: "\u200b", want: []string{"\u200b"}},

		{name: "a block", text: "```\na\n\n\nb\n```\n\nc", want: []string{"```\na\n\n\nb\n```", "c"}},
		{name: "a block of tildes", text: "~~~go `x`\na\n\nb\n~~~\n\nc", want: []string{"~~~go `x`\na\n\nb\n~~~", "c"}},
		{name: "a block within a paragraph", text: "a\n```\n\n```\nb\n\nc", want: []string{"a\n```\n\n```\nb", "c"}},
		{name: "a block with carriage returns", text: "```\r\na\r\n\r\nb\r\n```\r\n\r\nc", want: []string{"```\r\na\r\n\r\nb\r\n```", "c"}},
		{name: "a longer fence", text: "````\n```\n\n```\n`````\n\nc", want: []string{"````\n```\n\n```\n`````", "c"}},
		{name: "another fence does not close", text: "```\n~~~\n\na\n```\n\nc", want: []string{"```\n~~~\n\na\n```", "c"}},
		{name: "an info string does not close", text: "```\n``` x\n\na\n```  \t\n\nc", want: []string{"```\n``` x\n\na\n```", "c"}},
		{name: "up to three spaces", text: "   ```\na\n\nb\n   ```\n\nc", want: []string{"```\na\n\nb\n   ```", "c"}},
		{name: "four spaces open nothing", text: "    ```\na\n\nb", want: []string{"```\na", "b"}},
		{name: "nor do they within a paragraph", text: "a\n    ```\nb\n\nc", want: []string{"a\n    ```\nb", "c"}},
		{name: "nor do they close", text: "```\na\n    ```\n\nb", want: []string{"```\na\n    ```\n\nb"}},
		{name: "a tab opens nothing", text: "\t```\na\n\nb", want: []string{"```\na", "b"}},
		{name: "two backticks", text: "``\na\n\nb\n``", want: []string{"``\na", "b\n``"}},
		{name: "code within a line", text: "```a```\n\nb", want: []string{"```a```", "b"}},
		{name: "mixed marks", text: "``~\na\n\nb", want: []string{"``~\na", "b"}},
		{name: "behind text", text: "a ```\n\nb", want: []string{"a ```", "b"}},
		{name: "never closed", text: "```\na\n\nb\n\n", want: []string{"```\na\n\nb"}},
		{name: "an empty block", text: "```\n```\n\na", want: []string{"```\n```", "a"}},

		{name: "whole", whole: true, text: "\n a\n\nb\n```\n\n```\n\n \n", want: []string{"a\n\nb\n```\n\n```"}},
		{name: "whole and blank", whole: true, text: " \n\n"},
		{name: "whole and too long", whole: true, text: strings.Repeat("0123456 89\n\n", 7), want: []string{
			"0123456 89\n\n0123456 89\n\n0123456 89\n\n0123456 89\n\n0123456 89", "0123456 89\n\n0123456 89"}},

		// The limit is 64 bytes.
		{name: "just fits", text: long, want: []string{long}},
		{name: "just fits, then more", text: long + "\n\nb", want: []string{long, "b"}},
		{name: "just fits, then spaces", text: "a\n" + long[2:] + strings.Repeat(" ", 200) + "\r\n\n", want: []string{"a\n" + long[2:]}},
		{name: "one character too long", text: long + "y", want: []string{long, "y"}},
		{name: "cut at a line end", text: "a b\nc d\n" + long, want: []string{"a b\nc d", long}},
		{name: "cut at a line end, not at a later word", text: "a\nb " + long, want: []string{"a", "b", long}},
		{name: "cut at the end of a word", text: "aa bb  " + long, want: []string{"aa bb", long}},
		{name: "cut at the end of a word at the limit", text: long[1:] + " yy\n", want: []string{long[1:], "yy"}},
		{name: "cut in front of a word at the limit", text: long + " yy\n", want: []string{long, "yy"}},
		{name: "cut between characters", text: "x" + strings.Repeat("é", 40), want: []string{"x" + strings.Repeat("é", 31), strings.Repeat("é", 9)}},
		{name: "the rest of a line ends with it", text: long + "y\nz\n\nb", want: []string{long, "y\nz", "b"}},
		{name: "a block is closed and opened again", text: "a\n```go x\n" + strings.Repeat("0123456789\n", 9) + "```\nb\n\nc", want: []string{
			"a\n```go x\n" + strings.Repeat("0123456789\n", 4) + "```",
			"```go x\n" + strings.Repeat("0123456789\n", 4) + "```",
			"```go x\n0123456789\n```\nb",
			"c",
		}},
		{name: "blank lines in a block that is cut", text: "~~~~\n" + strings.Repeat("0123456789\r\n\r\n", 6) + "~~~~\n", want: []string{
			"~~~~\n" + strings.Repeat("0123456789\r\n\r\n", 3) + "0123456789\r\n\n~~~~",
			"~~~~\n0123456789\r\n\r\n0123456789\r\n\r\n~~~~",
		}},
		{name: "a block ends where it is cut", text: "```\n" + long[:56] + "\n```\nb", want: []string{"```\n" + long[:56] + "\n```", "b"}},
		{name: "a block is full where it ends, and so is its fence", text: "```\n" + long[:56] + "\n   ``````  \n\nb", want: []string{"```\n" + long[:56] + "\n```", "b"}},
		{name: "a block is full at the text's end", text: "```\n" + long[:56] + "\n```", want: []string{"```\n" + long[:56] + "\n```"}},
		{name: "a block is full and never closed", text: "```\n" + long[:56] + "\n \n", want: []string{"```\n" + long[:56] + "\n```"}},
		{name: "no cut behind the opening line", text: long[:40] + "\n```js\n" + long[:30] + "\n```", want: []string{long[:40], "```js\n" + long[:30] + "\n```"}},
		{name: "a line of code that is too long", text: "```js\n" + long[:30] + " " + long + "\n```\n", want: []string{
			"```js\n" + long[:30] + "\n```", "```js\n" + long[:54] + "\n```", "```js\n" + long[:10] + "\n```"}},
		{name: "an opening line of more than a quarter", text: "```" + long[:14] + "\n\na", want: []string{"```" + long[:14], "a"}},
		{name: "no rest begins with a fence", text: long[:50] + " y ~~~ z " + long[:6], want: []string{long[:50] + " y ~~~ z", long[:6]}},
		{name: "nor one between words", text: long[:53] + " yyyyyyyyy ``` zzz", want: []string{long[:53], "yyyyyyyyy ``` zzz"}},
		{name: "unless there is no other place", text: strings.Repeat("~", 70), want: []string{strings.Repeat("~", 64), "~~~~~~"}},
		{name: "words behind something like a fence", text: "~~~ aa " + long, want: []string{"~~~ aa", long}},
		{name: "a line of code does not end as a fence", text: "```\n``` " + long + "\n```\n\nb", want: []string{"```\n``` " + long[:52] + "\n```", "```\n" + long[52:] + "\n```", "b"}},
		{name: "what is left of a line opens nothing", text: long + strings.Repeat(" ", 258) + "```\na\n\nb", want: []string{long, "```\na", "b"}},
		{name: "nor one within a word", text: long + "```zz", want: []string{long[:63], "x```zz"}},
	} {
		one := split(t, test.whole, 64, test.text, inOne)
		if diff := cmp.Diff(test.want, texts(one), cmp.Transformer("empty", func(l []string) []string { return append([]string{}, l...) })); diff != "" {
			t.Errorf("%s: %q (-want +got):\n%s", test.name, test.text, diff)
		}
		for how, next := range map[string]func(int) int{"bytes": inBytes, "pairs": inPairs, "random": inRandom(7)} {
			if diff := cmp.Diff(one, split(t, test.whole, 64, test.text, next)); diff != "" {
				t.Errorf("%s: %q in %s (-in one +in %s):\n%s", test.name, test.text, how, how, diff)
			}
		}
	}
}

// TestSplitterHollow: a block with nothing in it but white space is never a message of its own, however much
// that is.
func TestSplitterHollow(t *testing.T) {
	t.Parallel()
	for _, space := range []string{" ", "\n", "\r\n", "\u3000", " \n\t"} {
		got := texts(split(t, false, 64, "a\n```\n"+strings.Repeat(space, 1000)+"b\n```\n", inRandom(1)))
		if len(got) != 2 || got[0] != "a" || !strings.HasPrefix(got[1], "```\n") || !strings.HasSuffix(got[1], "b\n```") {
			t.Errorf("with %q: %q", space, got)
		}
	}
}

// TestSplitterFullFence: a message that is full does not take the opening line of a block along, whatever
// white space follows it.
func TestSplitterFullFence(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2040)
	for _, spaces := range []int{0, 1, 100, 255, 256, 257, 258, 300, 500} {
		text := long + "\n```go" + strings.Repeat(" ", spaces) + "\na\n\nb\n```\n\nc"
		want := []string{long, "```go" + strings.Repeat(" ", spaces) + "\na\n\nb\n```", "c"}
		for how, next := range map[string]func(int) int{"one": inOne, "bytes": inBytes} {
			if diff := cmp.Diff(want, texts(split(t, false, 2048, text, next))); diff != "" {
				t.Errorf("%d spaces, in %s (-want +got):\n%s", spaces, how, diff)
			}
		}
	}
}

// TestSplitterRestClosesNothing: marks at the end of a line of code are no fence, even where white space in
// front of them was dropped.
func TestSplitterRestClosesNothing(t *testing.T) {
	t.Parallel()
	for spaces := 250; spaces < 450; spaces++ {
		got := texts(split(t, false, 64, "~~~\n"+strings.Repeat("x", 50)+strings.Repeat(" ", spaces)+"~~~\n\nb\n~~~\n\nc", inRandom(uint64(spaces))))
		if last := got[len(got)-1]; last != "c" || !strings.HasPrefix(got[len(got)-2], "~~~\n") || !strings.HasSuffix(got[len(got)-2], "\nb\n~~~") {
			t.Errorf("%d spaces: %q", spaces, got)
		}
	}
}

// TestSplitterAtOnce: a message leaves with the byte that completes it.
func TestSplitterAtOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want string }{
		{"a\n\n", "a"},
		{"a\n \t\n", "a"},
		{"a\r\n\r\n", "a"},
		{"\n\n  a\nb\n\n", "a\nb"},
		{"```\n\n```\n\n", "```\n\n```"},
		{strings.Repeat("x", 64) + "\n", strings.Repeat("x", 64)},
		{"a\n" + strings.Repeat("x", 65), "a"},
	} {
		var got []cutting
		emit := func(message string, end int64) error {
			got = append(got, cutting{message, end})
			return nil
		}
		s := newSplitter(false, 64)
		for i := range len(test.text) {
			if len(got) > 0 {
				t.Errorf("%q: a message after %d bytes already: %q", test.text, i, texts(got))
			}
			if err := s.feed([]byte{test.text[i]}, emit); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff([]string{test.want}, texts(got)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.text, diff)
		}
	}
}

// TestSplitterOffsets: end is behind the message's last character in all that was ever fed.
func TestSplitterOffsets(t *testing.T) {
	t.Parallel()
	var got []cutting
	emit := func(message string, end int64) error {
		got = append(got, cutting{message, end})
		return nil
	}
	s := newSplitter(false, 64)
	feed := func(text string) {
		if err := s.feed([]byte(text), emit); err != nil {
			t.Fatal(err)
		}
	}
	feed(" \n é \n\n\nb\r\n\r\nlost ```")
	s.discard()
	feed("\nc\n\n")                                          // 25 bytes so far
	feed("```\n" + strings.Repeat("y", 50) + "\nzzzzzzzzzz") // cut behind the y
	if err := s.finish(emit); err != nil {
		t.Fatal(err)
	}
	feed("d\n\n```go\n" + strings.Repeat("\n", 70)) // more than fits, and nothing
	if err := s.finish(emit); err != nil {
		t.Fatal(err)
	}
	if err := s.finish(emit); err != nil {
		t.Fatal(err)
	}
	want := []cutting{
		{"é", 5}, {"b", 10}, {"c", 24},
		{"```\n" + strings.Repeat("y", 50) + "\n```", 80}, {"```\nzzzzzzzzzz", 91}, {"d", 92}, {"```go", 99},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSplitterStops(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	calls := 0
	emit := func(string, int64) error { calls++; return stop }
	s := newSplitter(false, 64)
	if err := s.feed([]byte("a\n\nb\n\n"), emit); !errors.Is(err, stop) || calls != 1 {
		t.Errorf("feed = %v after %d messages, want the first one's error", err, calls)
	}
	s = newSplitter(false, 64)
	if err := s.feed([]byte("a"), emit); err != nil {
		t.Error(err)
	}
	if err := s.finish(emit); !errors.Is(err, stop) {
		t.Errorf("finish = %v, want emit's error", err)
	}
}

// TestSplitterIsBounded feeds what would never end, in pieces as a log gives them: memory is bounded, and so is time.
func TestSplitterIsBounded(t *testing.T) {
	t.Parallel()
	const size = 512 << 10
	begun := time.Now()
	for name, unit := range map[string]string{
		"letters": "x", "spaces": " ", "lines": "\n", "wide spaces": "\u3000", "short paragraphs": "a\n\n", "short lines": "a\n",
		"words": "a ", "backticks": "`", "fences": "```\n", "blocks": "```\na\n```\n", "far apart": "a" + strings.Repeat(" ", 300), "nothing in blocks": "~~~\n\n\n\n",
	} {
		for _, whole := range []bool{false, true} {
			limit := 16 << 10
			text := strings.Repeat(unit, size/len(unit))
			if whole {
				limit = 128 << 10
				text = "```\n" + text
			}
			got := split(t, whole, limit, text, func(rest int) int { return min(rest, 4<<10) })
			for _, c := range got {
				if len(c.Text) > limit || c.Text == "" {
					t.Errorf("%s: a message of %d bytes", name, len(c.Text))
				}
			}
		}
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("%v for some texts of %d bytes", took, size)
	}
}

// naiveParagraphs is the page again, over a whole text and without a limit. longest is the length of the
// longest one before its edges were trimmed.
func naiveParagraphs(text string) (list []string, longest int) {
	fenceLine := regexp.MustCompile("^ {0,3}(`{3,}|~{3,})([^\n]*)$")
	var lines []string
	flush := func() {
		m := strings.Join(lines, "\n")
		longest = max(longest, len(m))
		if m = strings.TrimSpace(m); m != "" {
			list = append(list, m)
		}
		lines = nil
	}
	open := ""
	for line := range strings.SplitSeq(text, "\n") {
		m := fenceLine.FindStringSubmatch(strings.TrimRight(line, " \t\r"))
		switch {
		case open != "":
			if m != nil && m[2] == "" && m[1][0] == open[0] && len(m[1]) >= len(open) {
				open = ""
			}
		case m != nil && (m[1][0] == '~' || !strings.Contains(m[2], "`")):
			open = m[1]
		case strings.TrimSpace(line) == "":
			flush()
		}
		lines = append(lines, line)
	}
	flush()
	return list, longest
}

// unclosed tells whether a message leaves a block open.
func unclosed(message string) bool {
	// A blank line and a letter behind it are a paragraph of their own, unless within a block.
	list, _ := naiveParagraphs(message + "\n\nZ")
	return list[len(list)-1] != "Z"
}

func squeeze(text, without string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) || strings.ContainsRune(without, c) {
			return -1
		}
		return c
	}, text)
}

// isSubsequence tells whether all of a is in b, in order.
func isSubsequence(a, b string) bool {
	rest := []rune(b)
next:
	for _, c := range a {
		for i, d := range rest {
			if c == d {
				rest = rest[i+1:]
				continue next
			}
		}
		return false
	}
	return true
}

// checkSplit holds all that must hold for any text.
func checkSplit(t *testing.T, whole bool, limit int, text string, seed uint64) []cutting {
	t.Helper()
	one := split(t, whole, limit, text, inOne)
	limit = max(limit, minLimit)
	for how, next := range map[string]func(int) int{"bytes": inBytes, "random pieces": inRandom(seed), "others": inRandom(seed + 1)} {
		if diff := cmp.Diff(one, split(t, whole, limit, text, next)); diff != "" {
			t.Fatalf("%q in %s (-in one +in %s):\n%s", text, how, how, diff)
		}
	}
	last := int64(0)
	var joined strings.Builder
	for _, c := range one {
		joined.WriteString(c.Text)
		switch {
		case len(c.Text) > limit:
			t.Fatalf("%q: a message of %d bytes under a limit of %d: %q", text, len(c.Text), limit, c.Text)
		case c.Text == "" || strings.TrimSpace(c.Text) != c.Text:
			t.Fatalf("%q: an edge of white space: %q", text, c.Text)
		case !utf8.ValidString(c.Text):
			t.Fatalf("%q: not UTF-8: %q", text, c.Text)
		case c.End <= last || c.End > int64(len(text)):
			t.Fatalf("%q: ends at %d, after %d, of %d", text, c.End, last, len(text))
		}
		last = c.End
		// The message is what stands in front of its end, but for a fence of ours in front and behind.
		lines := strings.Split(c.Text, "\n")
		tail := lines[len(lines)-1]
		if !strings.HasSuffix(text[:c.End], tail) && (len(lines) < 2 || !strings.HasSuffix(text[:c.End], lines[len(lines)-2])) {
			t.Fatalf("%q: %q does not end at %d", text, c.Text, c.End)
		}
	}
	if strings.Contains(text, "```") || strings.Contains(text, "~~~") {
		if !isSubsequence(squeeze(text, "`~"), squeeze(joined.String(), "`~")) {
			t.Fatalf("%q: something is lost: %q", text, joined.String())
		}
	} else if squeeze(text, "") != squeeze(joined.String(), "") {
		t.Fatalf("%q became another text: %q", text, joined.String())
	}
	if !whole {
		want, longest := naiveParagraphs(text)
		// The fence that closes a block must fit too.
		if longest <= limit-8 && !strings.Contains(text, "````") && !strings.Contains(text, "~~~~") && !hasLongFence(text, limit) {
			if diff := cmp.Diff(want, texts(one), cmp.Transformer("empty", func(l []string) []string { return append([]string{}, l...) })); diff != "" {
				t.Fatalf("%q (-naive +got):\n%s", text, diff)
			}
		}
	}
	return one
}

// hasLongFence tells whether a line begins like a fence and is longer than those that are taken for one.
func hasLongFence(text string, limit int) bool {
	for line := range strings.SplitSeq(text, "\n") {
		if trimmed := strings.TrimSpace(line); len(line) > limit/4 && len(trimmed) >= 3 && strings.Trim(trimmed[:3], "`~") == "" {
			return true
		}
	}
	return false
}

// TestSplitterRandom makes texts as models write them, and others that none would.
func TestSplitterRandom(t *testing.T) {
	t.Parallel()
	const rounds = 600
	parts := []string{
		"a", "word", " ", " ", "  ", "\n", "\n", "\r\n", "\n\n", "\n \n", "\t", "é", "😀", "\u3000", "\u00a0", "\r", "`", "``", "~~", "go",
		"\n```\n", "\n```go\n", "\n~~~\n", "\n````\n", "   ```\n", "    ```\n", "```", "~~~ `x`\n", "-", strings.Repeat("long", 9), strings.Repeat(" ", 70), strings.Repeat("\n", 70),
		strings.Repeat(" ", 300),
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range uint64(rounds) {
		var text strings.Builder
		for range r.IntN(120) {
			text.WriteString(parts[r.IntN(len(parts))])
		}
		checkSplit(t, i%4 == 0, 64+r.IntN(200), text.String(), i)
	}
}

// TestSplitterBlocks: whatever is cut, no message leaves a block open but the last of a text that does.
func TestSplitterBlocks(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	letters := func(n int) string { return strings.Repeat("x", 1+r.IntN(n)) }
	line := func() string {
		words := make([]string, 1+r.IntN(6))
		for i := range words {
			words[i] = letters(9)
		}
		return strings.Join(words, " ")
	}
	cut := 0
	for i := range uint64(600) {
		var text strings.Builder
		ends := []string{"\n", "\n", "\r\n"}
		put := func(lines ...string) {
			for _, l := range lines {
				text.WriteString(l + ends[r.IntN(len(ends))])
			}
		}
		closed := true
		for range 1 + r.IntN(6) {
			switch r.IntN(4) {
			case 0:
				put(line(), line())
			case 1:
				put("", strings.Repeat(" ", r.IntN(3)))
			default:
				marks := strings.Repeat([]string{"`", "~"}[r.IntN(2)], 3+r.IntN(3))
				indent := strings.Repeat(" ", r.IntN(4))
				put(indent + marks + []string{"", "go", " js title=x"}[r.IntN(3)])
				for range r.IntN(30) {
					put([]string{line(), "  " + line(), "", "    ```", "``", letters(100)}[r.IntN(6)])
				}
				if closed = i%5 > 0; closed {
					put(indent + marks)
				}
			}
			if !closed {
				break
			}
		}
		limit := 80 + r.IntN(300) // the longest opening line is less than a quarter of it
		got := checkSplit(t, i%3 == 0, limit, text.String(), i)
		for k, c := range got {
			if unclosed(c.Text) && (closed || k < len(got)-1) {
				t.Fatalf("%q under %d: a block is left open in %q", text.String(), limit, c.Text)
			}
		}
		cut += len(got)
	}
	if cut < 1500 {
		t.Errorf("%d messages in all: the texts were too short to be cut", cut)
	}
}

// TestSplitterCode: the lines of a block that is cut at line ends come out as they were.
func TestSplitterCode(t *testing.T) {
	t.Parallel()
	var code []string
	for i := range 400 {
		code = append(code, strings.Repeat(" ", i%7)+fmt.Sprint("line ", i), "")
	}
	text := "```go\n" + strings.Join(code, "\n") + "\n```\n"
	for limit := 64; limit < 300; limit += 7 {
		var back []string
		for _, c := range checkSplit(t, false, limit, text, 1) {
			body, ok := strings.CutPrefix(c.Text, "```go\n")
			body, ok2 := strings.CutSuffix(body, "\n```")
			if !ok || !ok2 {
				t.Fatalf("not a block: %q", c.Text)
			}
			back = append(back, strings.Split(body, "\n")...)
		}
		if diff := cmp.Diff(code, back); diff != "" {
			t.Fatalf("under %d (-want +got):\n%s", limit, diff)
		}
	}
}

// FuzzSplitter: whatever the text and the pieces, the messages are the same, fit, and lose nothing.
func FuzzSplitter(f *testing.F) {
	for _, text := range []string{
		"a\n\nb", "```go\na\n\nb\n```\n\nc", "~~~\n" + strings.Repeat("x\n", 50) + "~~~", "  ```\r\n\r\n```", "a\n```\n\n\n\n", strings.Repeat("é ", 100),
		strings.Repeat("`", 200), strings.Repeat(" ", 400) + "a" + strings.Repeat(" ", 400) + "\u3000\n", "x ``` y", "> ```\n> a\n\n- b\n\n      c",
	} {
		f.Add(text, uint8(0), false, uint64(1))
		f.Add(text, uint8(40), true, uint64(2))
	}
	f.Fuzz(func(t *testing.T, text string, limit uint8, whole bool, seed uint64) {
		if len(text) > 20_000 {
			return
		}
		checkSplit(t, whole, int(limit), strings.ToValidUTF8(text, "\uFFFD"), seed)
	})
}

// TestSplitterTakesAnyBytes: a text is UTF-8, but nothing breaks where it is not.
func TestSplitterTakesAnyBytes(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		text := make([]byte, r.IntN(400))
		for i := range text {
			text[i] = []byte{0x80, 0xbf, 0xc3, 0xe3, 0xf0, 0xff, 'a', ' ', '\n', '`'}[r.IntN(10)]
		}
		for _, c := range split(t, false, 64, string(text), inRandom(r.Uint64())) {
			if len(c.Text) > 64 {
				t.Fatalf("%q: a message of %d bytes", text, len(c.Text))
			}
		}
	}
}

func BenchmarkSplitter(b *testing.B) {
	text := []byte(strings.Repeat("A line of a paragraph, as models write them.\nAnd another one.\n\n```go\nfunc main() {\n\n}\n```\n\n", 1000))
	for _, piece := range []int{16, 4096} {
		b.Run(fmt.Sprint(piece), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			emit := func(string, int64) error { return nil }
			for b.Loop() {
				s := newSplitter(false, 16<<10)
				for p := text; len(p) > 0; {
					n := min(piece, len(p))
					if err := s.feed(p[:n], emit); err != nil {
						b.Fatal(err)
					}
					p = p[n:]
				}
			}
		})
	}
}
