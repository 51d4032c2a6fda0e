package ndjson

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
)

// DefaultLineLimit is the limit that [Lines] uses where none is given: 8 MiB.
const DefaultLineLimit = 8 << 20

// A Line is one line of a stream.
type Line struct {
	// Number counts from 1, as an editor does: empty lines count.
	Number int
	// Data is the line without its end. It is only valid until the next one is asked for.
	Data []byte
}

// A LineTooLongError reports a line over the limit. The line is not cut and not skipped: reading
// ends with it.
type LineTooLongError struct {
	Number int // of the line, from 1
	Limit  int // in bytes
}

func (e *LineTooLongError) Error() string {
	return fmt.Sprintf("line %d is longer than the limit of %d bytes", e.Number, e.Limit)
}

// Lines iterates over the lines of r. Only \n ends a line, one \r before it belongs to the end, empty
// lines are counted and passed over, and a last line counts without \n. limit is the longest line
// accepted, in bytes without its end; 0 means [DefaultLineLimit]. It holds at most that and one
// buffer.
//
// The last pair may be an error: a [*LineTooLongError] or what r returned; a line that was cut off by
// an error is not handed out. The sequence can be walked once. It does not close r.
func Lines(r io.Reader, limit int) iter.Seq2[Line, error] {
	if limit <= 0 {
		limit = DefaultLineLimit
	}
	return func(yield func(Line, error) bool) {
		br := bufio.NewReaderSize(r, 32<<10)
		var long []byte // the line so far, where it is longer than one buffer
		for n := 1; ; {
			piece, err := br.ReadSlice('\n')
			if errors.Is(err, bufio.ErrBufferFull) {
				long = append(long, piece...)
				if len(long) > limit+1 { // one may still be the \r of the end
					yield(Line{}, &LineTooLongError{n, limit})
					return
				}
				continue
			}
			if err != nil && err != io.EOF {
				yield(Line{}, err)
				return
			}
			line := piece
			if len(long) > 0 {
				long = append(long, piece...)
				line = long
			}
			if l := len(line); l > 0 && line[l-1] == '\n' {
				line = line[:l-1]
				if l := len(line); l > 0 && line[l-1] == '\r' {
					line = line[:l-1]
				}
			} else if l > 0 && line[l-1] == '\r' {
				line = line[:l-1]
			}
			if len(line) > limit {
				yield(Line{}, &LineTooLongError{n, limit})
				return
			}
			if len(line) > 0 && !yield(Line{n, line}, nil) {
				return
			}
			if err == io.EOF {
				return
			}
			n++
			if long = long[:0]; cap(long) > 1<<20 {
				long = nil
			}
		}
	}
}
