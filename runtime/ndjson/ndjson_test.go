package ndjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/backline-dev/backline/runtime/ndjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAppendStringDecodesToTheSameText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{"", `""`},
		{"plain", `"plain"`},
		{`a "quote" and a \`, `"a \"quote\" and a \\"`},
		{"\n\r\t\x00\x1f\x7f", "\"\\n\\r\\t\\u0000\\u001f\x7f\""},
		{"<b>&amp;</b>", `"<b>&amp;</b>"`},
		{"a\u2028b\u2029c", `"a\u2028b\u2029c"`},
		{"naïve 渐渐 👩🏽‍🚀", `"naïve 渐渐 👩🏽‍🚀"`},
		{"\xff\xfe", "\"\uFFFD\uFFFD\""},
		{"\xe2\x82", "\"\uFFFD\uFFFD\""},
		{"exactly8", `"exactly8"`},
		{"sixteen chars ok\"", `"sixteen chars ok\""`},
	} {
		if got := string(ndjson.AppendString(nil, tc.in)); got != tc.want {
			t.Errorf("AppendString(%q) = %s, want %s", tc.in, got, tc.want)
		}
	}
}

func checkString(t interface{ Fatalf(string, ...any) }, s string) {
	out := ndjson.AppendString([]byte("x"), s)[1:]
	if !utf8.Valid(out) || bytes.ContainsAny(out, "\n\r\u2028\u2029") {
		t.Fatalf("AppendString(%q) = %q is not one line of UTF-8", s, out)
	}
	var back string
	if err := json.Unmarshal(out, &back); err != nil {
		t.Fatalf("AppendString(%q) = %q is not JSON: %v", s, out, err)
	}
	var want strings.Builder
	for _, r := range s { // ranging replaces each invalid byte by itself
		want.WriteRune(r)
	}
	if back != want.String() {
		t.Fatalf("AppendString(%q) reads back as %q", s, back)
	}
}

func TestAppendStringProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		checkString(t, string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")))
		checkString(t, rapid.String().Draw(t, "text"))
	})
}

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "plain text", "\u2028", "\xed\xa0\x80", "eight by\x1fte", "\\\"\x7f\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { checkString(t, s) })
}

func collect(r io.Reader, limit int) (lines []string, numbers []int, err error) {
	for line, e := range ndjson.Lines(r, limit) {
		if e != nil {
			return lines, numbers, e
		}
		lines = append(lines, string(line.Data))
		numbers = append(numbers, line.Number)
	}
	return lines, numbers, nil
}

// Fault A2: only \n ends a line, one \r belongs to the end, empty lines are counted, the last line
// counts without \n, and U+2028 and U+0085 are nothing special; whatever the packing.
func TestFaultA2LineEnds(t *testing.T) {
	t.Parallel()
	const in = "a\u2028b\n\r\n\nc\u0085d\r\r\n e \nlast"
	want := []string{"a\u2028b", "c\u0085d\r", " e ", "last"}
	wantN := []int{1, 4, 5, 6}
	check := func(name string, r io.Reader) {
		t.Helper()
		lines, numbers, err := collect(r, 0)
		if err != nil || strings.Join(lines, "|") != strings.Join(want, "|") {
			t.Errorf("%s: lines = %q, %v, want %q", name, lines, err, want)
		}
		for i := range wantN {
			if i < len(numbers) && numbers[i] != wantN[i] {
				t.Errorf("%s: line %d has number %d, want %d", name, i, numbers[i], wantN[i])
			}
		}
	}
	check("whole", strings.NewReader(in))
	check("byte by byte", iotest.OneByteReader(strings.NewReader(in)))
	for i := range in {
		check("cut", io.MultiReader(strings.NewReader(in[:i]), strings.NewReader(in[i:])))
	}
}

// Fault A1: a line may be as long as the limit, whatever the buffers; one byte more is an error that
// names the limit, and an endless line does not fill the memory.
func TestFaultA1LongLines(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	full := strings.Repeat("x", limit)
	lines, _, err := collect(strings.NewReader("{}\n"+full+"\r\n"+full+"\nend"), limit)
	if err != nil || len(lines) != 4 || lines[1] != full || lines[2] != full || lines[3] != "end" {
		t.Fatalf("lines at the limit: %d lines, %v", len(lines), err)
	}
	for name, r := range map[string]io.Reader{
		"one byte more": strings.NewReader("{}\n" + full + "x\nnext"),
		"endless":       io.MultiReader(strings.NewReader("{}\n"), endless{}),
	} {
		lines, _, err := collect(r, limit)
		var long *ndjson.LineTooLongError
		if !errors.As(err, &long) || long.Number != 2 || long.Limit != limit || len(lines) != 1 {
			t.Errorf("%s: %d lines, error %v, want a LineTooLongError for line 2", name, len(lines), err)
		}
		if err != nil && !strings.Contains(err.Error(), "100000") {
			t.Errorf("%s: %q does not name the limit", name, err)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestLinesReportsAReadErrorAndDropsTheCutLine(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	lines, _, err := collect(io.MultiReader(strings.NewReader("one\ntw"), iotest.ErrReader(boom)), 0)
	if !errors.Is(err, boom) || len(lines) != 1 {
		t.Fatalf("lines %q, error %v, want one line and the reader's error", lines, err)
	}
}

// A fakeConn records what is written and when it is flushed; gate, if set, is received from before each
// write returns.
type fakeConn struct {
	mu       sync.Mutex
	data     []byte
	writes   int
	flushes  []int // length of data at each flush
	gate     chan struct{}
	deadline time.Time
	wake     chan struct{}
	fail     error
	noFlush  bool
}

func newConn() *fakeConn { return &fakeConn{wake: make(chan struct{}, 64)} }

func (c *fakeConn) Write(p []byte) (int, error) {
	if c.gate != nil {
		var timeout <-chan time.Time
		c.mu.Lock()
		d := c.deadline
		c.mu.Unlock()
		if !d.IsZero() {
			timer := time.NewTimer(time.Until(d))
			defer timer.Stop()
			timeout = timer.C
		}
	wait:
		for {
			select {
			case <-c.gate:
				break wait
			case <-timeout:
				return 0, os.ErrDeadlineExceeded
			case <-c.wake:
				c.mu.Lock()
				past := !c.deadline.IsZero() && !c.deadline.After(time.Now())
				c.mu.Unlock()
				if past {
					return 0, os.ErrDeadlineExceeded
				}
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return 0, c.fail
	}
	c.data = append(c.data, p...)
	c.writes++
	return len(p), nil
}

func (c *fakeConn) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noFlush {
		return errors.ErrUnsupported
	}
	c.flushes = append(c.flushes, len(c.data))
	return nil
}

func (c *fakeConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

func (c *fakeConn) got() (string, int, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.data), c.writes, len(c.flushes)
}

func add(l *ndjson.Log, line string) bool {
	if err := l.Begin(); err != nil {
		panic(err)
	}
	return l.Commit(append(l.Room(len(line)), line...), true)
}

func seal(t *testing.T, l *ndjson.Log, line string) {
	t.Helper()
	if err := l.Begin(); err != nil {
		t.Fatalf("Begin: %v", err)
	}
	l.Seal(append(l.Room(len(line)), line...), false)
}

func attach(t *testing.T, l *ndjson.Log, c ndjson.Conn, from int64) *ndjson.Tail {
	t.Helper()
	tail, err := l.Attach(c, from)
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	return tail
}

func feed(t *testing.T, l *ndjson.Log, c ndjson.Conn) *ndjson.Tail {
	t.Helper()
	tail, err := l.Feed(c, 0, nil)
	if err != nil {
		t.Fatalf("Feed: %v", err)
	}
	return tail
}

// follow runs Follow on a goroutine and returns what it will return.
func follow(tail *ndjson.Tail, done <-chan struct{}) <-chan error {
	c := make(chan error, 1)
	go func() { c <- tail.Follow(done) }()
	return c
}

func TestAPacedLineLeavesAtOnceWithOneFlush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l ndjson.Log
		l.Init(nil)
		c := newConn()
		tail := feed(t, &l, c)
		for i := 1; i <= 5; i++ {
			time.Sleep(10 * time.Millisecond)
			add(&l, "line\n")
			// The producer itself has written: nobody else had to run for it.
			if _, writes, flushes := c.got(); writes != i || flushes != i {
				t.Fatalf("after line %d: %d writes, %d flushes", i, writes, flushes)
			}
		}
		seal(t, &l, "end\n")
		if err := tail.Close(); err != nil {
			t.Fatal(err)
		}
		data, writes, flushes := c.got()
		if data != strings.Repeat("line\n", 5)+"end\n" || writes != 6 || flushes != 5 {
			t.Errorf("%q in %d writes, %d flushes; want the last line written and left to the end of the response", data, writes, flushes)
		}
	})
}

func TestABurstIsGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l ndjson.Log
		l.Init(nil)
		c := newConn()
		c.gate = make(chan struct{})
		tail := feed(t, &l, c)
		time.Sleep(time.Millisecond)
		go add(&l, "first\n") // written in place, and held up by the gate
		synctest.Wait()
		for range 1000 {
			add(&l, "more\n")
		}
		close(c.gate)
		synctest.Wait()
		data, writes, flushes := c.got()
		if data != "first\n"+strings.Repeat("more\n", 1000) || writes > 4 || flushes > 2 {
			t.Errorf("%d bytes in %d writes, %d flushes, want all in at most 4 writes and 2 flushes", len(data), writes, flushes)
		}
		seal(t, &l, "")
		if err := tail.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Nothing waits for the end: a lone line and the last line of a burst leave by themselves.
func TestNoLineIsLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l ndjson.Log
		l.Init(nil)
		c := newConn()
		tail := feed(t, &l, c)
		want := ""
		for burst := range 20 {
			for range burst {
				want += "x\n"
				add(&l, "x\n")
			}
			synctest.Wait() // no time passes
			if data, _, flushes := c.got(); data != want || burst > 0 && flushes == 0 || c.flushes != nil && c.flushes[len(c.flushes)-1] != len(want) {
				t.Fatalf("after a burst of %d lines, %d of %d bytes are flushed", burst, len(data), len(want))
			}
		}
		_ = tail.Close()
	})
}

func TestBackPressureHoldsTheProducerOfASlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l ndjson.Log
		l.Init(&ndjson.LogConfig{Ahead: 1000, WriteTimeout: -1})
		c := newConn()
		c.gate = make(chan struct{})
		end := follow(attach(t, &l, c, 0), nil)
		synctest.Wait()
		produced := make(chan int, 1)
		go func() {
			n := 0
			for ; n < 100; n++ {
				if add(&l, strings.Repeat("x", 99)+"\n") {
					l.WaitRoom(nil)
				}
			}
			produced <- n
		}()
		synctest.Wait()
		if size := l.Size(); size < 100 || size > 1200 {
			t.Errorf("the producer is %d bytes ahead, want about 1000", size)
		}
		if _, all := l.Taken(); all {
			t.Error("Taken says that the reader has all")
		}
		close(c.gate)
		<-produced
		seal(t, &l, "end\n")
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if data, _, _ := c.got(); len(data) != 100*100+4 {
			t.Errorf("%d bytes arrived, want all", len(data))
		}
	})
}

func TestAReaderThatTakesNothingFailsByTheWriteTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l ndjson.Log
		l.Init(&ndjson.LogConfig{WriteTimeout: 3 * time.Second})
		c := newConn()
		c.gate = make(chan struct{})
		end := follow(attach(t, &l, c, 0), nil)
		synctest.Wait()
		start := time.Now()
		go add(&l, "line\n")
		if err := <-end; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Follow = %v, want a deadline error", err)
		}
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("after %v, want 3s", d)
		}
	})
}

func TestFollowEndsWhenTheReaderGoes(t *testing.T) {
	t.Parallel()
	var l ndjson.Log
	l.Init(nil)
	c := newConn()
	done := make(chan struct{})
	tail := attach(t, &l, c, 0)
	end := follow(tail, done)
	close(done)
	if err := <-end; !errors.Is(err, ndjson.ErrGone) {
		t.Errorf("Follow = %v, want ErrGone", err)
	}
	tail.Detach()
	tail.Detach()
	add(&l, "into the void\n") // nobody reads: no harm
	seal(t, &l, "end\n")
	if data, _, _ := c.got(); data != "" {
		t.Errorf("%q was written after the end", data)
	}
}

// A reader that is dropped holds nobody up, not even the producer that is writing to it at the moment.
func TestDropCutsAWriteShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, other := range []bool{false, true} {
			var l ndjson.Log
			l.Init(&ndjson.LogConfig{Ahead: 100})
			c := newConn()
			c.gate = make(chan struct{})
			tail := feed(t, &l, c)
			second := newConn()
			var end <-chan error
			if other {
				end = follow(attach(t, &l, second, 0), nil)
			}
			time.Sleep(time.Second)
			wrote := make(chan struct{})
			go func() {
				defer close(wrote)
				for range 100 {
					if add(&l, "a line of some length\n") {
						l.WaitRoom(nil)
					}
				}
			}()
			synctest.Wait()
			_ = tail.Drop()
			<-wrote
			seal(t, &l, "end\n")
			if err := tail.Close(); err == nil {
				t.Error("Close = nil, want why the reader got no further")
			}
			if data, _, _ := c.got(); data != "" {
				t.Errorf("%q arrived at a reader that is gone", data)
			}
			if other {
				if err := <-end; err != nil {
					t.Error(err)
				}
				if data, _, _ := second.got(); len(data) != 100*22+4 {
					t.Errorf("the other reader got %d bytes", len(data))
				}
			}
		}
	})
}

func TestAFailedWriteIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, burst := range []bool{false, true} {
			var l ndjson.Log
			l.Init(nil)
			c := newConn()
			c.fail = errors.New("reset")
			var told []error
			tail, err := l.Feed(c, 0, func(err error) {
				told = append(told, err)
				_ = l.Size() // not under the lock
			})
			if err != nil {
				t.Fatal(err)
			}
			if burst {
				add(&l, "a burst begins when the last flush was just now\n")
			}
			time.Sleep(time.Second)
			for range 5 {
				add(&l, "line\n")
			}
			synctest.Wait()
			if len(told) != 1 || !errors.Is(told[0], c.fail) {
				t.Errorf("told %v, want the write's error once", told)
			}
			if err := tail.Close(); !errors.Is(err, c.fail) {
				t.Errorf("Close = %v, want the write's error", err)
			}
		}
	})
}

// hangConn counts how often its response was ended from outside.
type hangConn struct {
	*fakeConn
	hung int
}

func (c *hangConn) HangUp() { c.hung++ }

func TestAnOrphanedTailGetsTheLastLineAndIsHungUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l ndjson.Log
		l.Init(nil)
		c := &hangConn{fakeConn: newConn()}
		tail := feed(t, &l, c)
		add(&l, "line\n")
		if err := l.Begin(); err != nil {
			t.Fatal(err)
		}
		l.Seal(append(l.Room(8), "end\n"...), true)
		synctest.Wait()
		data, _, _ := c.got()
		if data != "line\nend\n" || c.hung != 1 || c.flushes[len(c.flushes)-1] != len(data) {
			t.Errorf("%q flushed to %v, hung up %d times", data, c.flushes, c.hung)
		}
		if err := tail.Close(); !errors.Is(err, ndjson.ErrGone) {
			t.Errorf("Close = %v, want ErrGone", err)
		}

		var m ndjson.Log
		m.Init(nil)
		c = &hangConn{fakeConn: newConn()}
		tail = feed(t, &m, c)
		seal(t, &m, "end\n")
		if err := tail.HangUp(); err != nil || c.hung != 1 || len(c.flushes) != 1 {
			t.Errorf("HangUp = %v, hung up %d times after %v", err, c.hung, c.flushes)
		}
	})
}

func TestLateReadersGetTheSameBytes(t *testing.T) {
	t.Parallel()
	var l ndjson.Log
	l.Init(nil)
	var conns []*fakeConn
	var ends []<-chan error
	join := func() {
		c := newConn()
		conns = append(conns, c)
		ends = append(ends, follow(attach(t, &l, c, 0), nil))
	}
	var want strings.Builder
	for i := range 2000 {
		if i%500 == 0 {
			join()
		}
		line := strings.Repeat("y", i%70) + "\n"
		want.WriteString(line)
		if add(&l, line) {
			l.WaitRoom(nil)
		}
	}
	seal(t, &l, "end\n")
	want.WriteString("end\n")
	join() // a replay
	for i, end := range ends {
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if data, _, _ := conns[i].got(); data != want.String() {
			t.Errorf("reader %d got %d bytes, want %d, the same ones", i, len(data), want.Len())
		}
	}
}

func TestALogThatOutgrowsItsBoundGoesOnAndCannotBeJoined(t *testing.T) {
	t.Parallel()
	var l ndjson.Log
	l.Init(&ndjson.LogConfig{Keep: 64 << 10})
	c := newConn()
	end := follow(attach(t, &l, c, 0), nil)
	line := strings.Repeat("z", 999) + "\n"
	for range 5000 {
		if add(&l, line) {
			l.WaitRoom(nil)
		}
	}
	if _, err := l.Attach(newConn(), 0); !errors.Is(err, ndjson.ErrTrimmed) || !l.Trimmed() {
		t.Errorf("Attach = %v, want ErrTrimmed", err)
	}
	seal(t, &l, "end\n")
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	if data, _, _ := c.got(); data != strings.Repeat(line, 5000)+"end\n" {
		t.Errorf("the reader got %d bytes, want %d", len(data), 5000*1000+4)
	}
	if held := l.Held(); held > 512<<10 {
		t.Errorf("the log holds %d bytes of a stream of 5 MB", held)
	}
}

func TestAnUnreadLogWaitsForAReaderOnlyIfTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conf := &ndjson.LogConfig{Keep: 1000, HoldUnread: true}
		var l ndjson.Log
		l.Init(conf)
		var produced int
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			for range 100 {
				produced++
				if add(&l, strings.Repeat("x", 99)+"\n") {
					l.WaitRoom(nil)
				}
			}
		}()
		synctest.Wait()
		if produced > 12 {
			t.Fatalf("%d lines were produced with nobody to read them", produced)
		}
		c := newConn()
		end := follow(attach(t, &l, c, 0), nil)
		<-finished
		seal(t, &l, "end\n")
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if data, _, _ := c.got(); len(data) != 100*100+4 {
			t.Errorf("the reader who came late got %d bytes, want all", len(data))
		}
	})
}

func TestPartsEndAtTheirCut(t *testing.T) {
	t.Parallel()
	var l ndjson.Log
	l.Init(nil)
	first := newConn()
	end := follow(attach(t, &l, first, 0), nil)
	add(&l, "one\n")
	add(&l, "two\n")
	l.Cut()
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	if data, _, _ := first.got(); data != "one\ntwo\n" {
		t.Errorf("the first part is %q", data)
	}
	at, ok := l.Part(1)
	if !ok || at != 8 {
		t.Fatalf("Part(1) = %d, %v", at, ok)
	}
	second := newConn()
	end = follow(attach(t, &l, second, at), nil)
	add(&l, "three\n")
	seal(t, &l, "end\n")
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	if data, _, _ := second.got(); data != "three\nend\n" {
		t.Errorf("the second part is %q", data)
	}
	again := newConn() // a replay of the first part alone
	if err := attach(t, &l, again, 0).Follow(nil); err != nil {
		t.Fatal(err)
	}
	if data, _, _ := again.got(); data != "one\ntwo\n" {
		t.Errorf("the first part is replayed as %q", data)
	}
	if _, ok := l.Part(2); ok {
		t.Error("there is a third part")
	}
}

func TestNothingIsAppendedToASealedLog(t *testing.T) {
	t.Parallel()
	var l ndjson.Log
	l.Init(nil)
	sealed := l.Sealed()
	seal(t, &l, "end\n")
	<-sealed
	<-l.Sealed()
	if err := l.Begin(); !errors.Is(err, ndjson.ErrSealed) {
		t.Errorf("Begin = %v, want ErrSealed", err)
	}
}

func TestAConnThatCannotFlushStillGetsAll(t *testing.T) {
	t.Parallel()
	var l ndjson.Log
	l.Init(nil)
	c := newConn()
	c.noFlush = true
	tail := attach(t, &l, c, 0)
	add(&l, "one\n")
	if err := tail.Flush(); err != nil {
		t.Fatal(err)
	}
	end := follow(tail, nil)
	seal(t, &l, "end\n")
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	if data, _, _ := c.got(); data != "one\nend\n" {
		t.Errorf("got %q", data)
	}
}

func TestAFailedWriteEndsFollow(t *testing.T) {
	t.Parallel()
	var l ndjson.Log
	l.Init(nil)
	c := newConn()
	c.fail = errors.New("reset")
	tail := attach(t, &l, c, 0)
	end := follow(tail, nil)
	add(&l, "one\n")
	if err := <-end; !errors.Is(err, c.fail) {
		t.Errorf("Follow = %v, want the write's error", err)
	}
	tail.Detach()
	if tooFar := add(&l, strings.Repeat("x", 1<<20)); tooFar {
		t.Error("the producer waits for a reader that is gone")
	}
}

// Lines of every size, from several producers at once, to several readers: all arrive whole and in one
// order.
func TestConcurrentProducersAndReaders(t *testing.T) {
	t.Parallel()
	var l ndjson.Log
	l.Init(&ndjson.LogConfig{Ahead: 4 << 10, Keep: 64 << 20})
	var conns []*fakeConn
	var ends []<-chan error
	for range 3 {
		c := newConn()
		conns = append(conns, c)
		ends = append(ends, follow(attach(t, &l, c, 0), nil))
	}
	var wg sync.WaitGroup
	for p := range 4 {
		wg.Go(func() {
			for i := range 500 {
				line := strings.Repeat(string(rune('a'+p)), 1+i%3000) + "\n"
				if l.Begin() != nil {
					t.Error("sealed too early")
					return
				}
				if l.Commit(append(l.Room(16), line...), true) {
					l.WaitRoom(nil)
				}
			}
		})
	}
	wg.Wait()
	seal(t, &l, "end\n")
	for _, end := range ends {
		if err := <-end; err != nil {
			t.Fatal(err)
		}
	}
	want, _, _ := conns[0].got()
	counts := map[byte]int{}
	for line := range strings.Lines(want) {
		if strings.Trim(line, line[:1]) != "\n" && line != "end\n" {
			t.Fatalf("a line is torn: %.40q", line)
		}
		counts[line[0]]++
	}
	if counts['a'] != 500 || counts['d'] != 500 {
		t.Errorf("lines per producer: %v", counts)
	}
	for i, c := range conns {
		if got, _, _ := c.got(); got != want {
			t.Errorf("reader %d got another stream", i)
		}
	}
}

// No allocation per line once a stream runs.
func TestAppendingDoesNotAllocate(t *testing.T) {
	var l ndjson.Log
	l.Init(&ndjson.LogConfig{Keep: 64 << 10, Ahead: 1 << 30})
	tail := feed(t, &l, discard{})
	line := `{"protocolVersion":1,"type":"text","content":`
	text := "twenty characters ok"
	produce := func() {
		for range 1000 {
			_ = l.Begin()
			b := append(l.Room(100), line...)
			l.Commit(append(ndjson.AppendString(b, text), "}\n"...), true)
		}
	}
	produce()
	if n := testing.AllocsPerRun(20, produce); n > 20 {
		t.Errorf("%v allocations per 1000 lines, want next to none", n)
	}
	_ = tail.Close()
}

type discard struct{}

func (discard) Write(p []byte) (int, error)        { return len(p), nil }
func (discard) Flush() error                       { return nil }
func (discard) SetWriteDeadline(t time.Time) error { return nil }
