package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// A screen shows the text of one turn as it arrives.
type screen struct {
	a       *app
	quiet   bool
	midLine bool
}

func (s *screen) text(chunk string) {
	if s.quiet || chunk == "" {
		return
	}
	if s.a.outIsTTY {
		chunk = visible(chunk)
	}
	_, _ = io.WriteString(s.a.out, chunk)
	s.midLine = !strings.HasSuffix(chunk, "\n")
}

// status shows what the agent does, where somebody looks, and not in the middle of its text.
func (s *screen) status(content string) {
	if s.quiet || !s.a.outIsTTY || s.midLine {
		return
	}
	_, _ = fmt.Fprintf(s.a.out, "%s\n", s.a.dim("("+oneLine(content)+")"))
}

func (s *screen) finish() {
	if s.midLine {
		_, _ = io.WriteString(s.a.out, "\n")
	}
}

// An eventReport is a line of a stream as --json prints it.
type eventReport struct {
	At   float64 `json:"ms"`
	Line string  `json:"line"`
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

// showEvent shows a raw line with its time of arrival.
func (a *app) showEvent(e eventReport) {
	if a.outIsTTY {
		e.Line = visible(e.Line)
	}
	_, _ = fmt.Fprintf(a.out, "%10s ms  %s\n", strconv.FormatFloat(e.At, 'f', 3, 64), e.Line)
}

// excerpt is the beginning of a text.
func excerpt(s string) string {
	const most = 200
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i] + "…"
		}
	}
	return s
}

func (a *app) dim(s string) string { return a.styled("2", s) }

func (a *app) bold(s string) string { return a.styled("1", s) }

func (a *app) styled(code, s string) string {
	if !a.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
