package wirehttp

import (
	"compress/gzip"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// A Body says which bodies a handler takes. It may be used by several goroutines.
type Body struct {
	// MaxBytes limits the size after decompression. Default 8 MiB; negative means no limit.
	MaxBytes int64
	// Timeout limits how long the body may take to come. Default 30 seconds; negative means that only the
	// server's own limit holds.
	Timeout time.Duration
	// AsSent: the bytes of the body count as they are on the wire, because they are signed, say. There is no
	// Content-Encoding then, and any Content-Type.
	AsSent bool
}

const (
	defaultMaxBytes = 8 << 20
	defaultTimeout  = 30 * time.Second
)

// WithDefaults returns b with its defaults in place. Bound and Read are for what it returns.
func (b Body) WithDefaults() Body {
	switch {
	case b.MaxBytes == 0:
		b.MaxBytes = defaultMaxBytes
	case b.MaxBytes < 0:
		b.MaxBytes = math.MaxInt64 - 1
	}
	if b.Timeout == 0 {
		b.Timeout = defaultTimeout
	}
	return b
}

// Bound limits how long r's body may take to come from now on. It is called first of all, since the server
// reads on after a refusal too, to use the connection again: a body that never comes would hold it for
// ever. It also lifts a server's own limit on the whole response, which would be over before the answer to
// a body that comes slowly. Whoever answers sets limits on each write.
func (b *Body) Bound(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	if r.ContentLength != 0 && b.Timeout > 0 {
		_ = rc.SetReadDeadline(time.Now().Add(b.Timeout)) // without it the server's own holds
	}
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.WriteTimeout > 0 {
		_ = rc.SetWriteDeadline(time.Time{})
	}
}

// unwantedTimeout is how long a server may read a body that nobody wants.
const unwantedTimeout = time.Second

// Unwanted takes the place of Bound and Read for requests that need no body. What there is of one is read
// by the server, for a second at the most, and the connection is used again if that was all.
func Unwanted(w http.ResponseWriter, r *http.Request) {
	b := Body{Timeout: unwantedTimeout}
	b.Bound(w, r)
}

// Read reads r's whole body, after Bound. What is not taken is a refusal: 415 for its Content-Type or
// Content-Encoding, 413 for its size, 408 where it did not come in time, 400 where it is not whole. Their
// reasons are media-type, encoding, too-large, slow-body, cut-body, and bad-gzip where it could not be
// decompressed. The limits count what is read, whatever the framing says, and no more is read than they
// allow. The bytes are the caller's.
func (b *Body) Read(w http.ResponseWriter, r *http.Request) ([]byte, *Refusal) {
	if !b.AsSent && !acceptType(r.Header) {
		return nil, Refuse(http.StatusUnsupportedMediaType, "media-type", "The Content-Type is %s, expected application/json.", Excerpt(r.Header.Get("Content-Type"))).Unread(r)
	}
	gz, ok := encoding(r.Header)
	if !ok || gz && b.AsSent {
		expected := "gzip or none"
		if b.AsSent {
			expected = "none"
		}
		return nil, Refuse(http.StatusUnsupportedMediaType, "encoding", "The Content-Encoding is %s, expected %s.", Excerpt(strings.Join(r.Header["Content-Encoding"], ", ")), expected).Unread(r)
	}
	body, refusal := b.read(r, gz)
	if refusal != nil {
		refusal.Closing = r.ProtoMajor < 2
		return nil, refusal
	}
	// Left in place it would end the request in the middle of its stream.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body, nil
}

// acceptType tells whether a Content-Type is JSON. None at all is accepted.
func acceptType(h http.Header) bool {
	v := h.Get("Content-Type")
	if v == "application/json" || v == "" {
		return true
	}
	t, _, err := mime.ParseMediaType(v)
	if err != nil {
		return false
	}
	return t == "application/json" || strings.HasSuffix(t, "+json") && strings.Contains(t, "/")
}

// encoding reads Content-Encoding: false means none, true gzip.
func encoding(h http.Header) (gz bool, ok bool) {
	v := h["Content-Encoding"]
	if len(v) == 0 {
		return false, true
	}
	if len(v) > 1 {
		return false, false
	}
	switch strings.ToLower(strings.TrimSpace(v[0])) {
	case "", "identity":
		return false, true
	case "gzip":
		return true, true
	}
	return false, false
}

var gzips sync.Pool

// firstRead is how much is allocated on the word of a Content-Length alone.
const firstRead = 512 << 10

func (b *Body) read(r *http.Request, gz bool) ([]byte, *Refusal) {
	limit := b.MaxBytes
	src, length := io.Reader(r.Body), r.ContentLength
	if !gz && length > limit {
		return nil, tooLarge(limit)
	}
	if gz {
		length = -1
		packed := &packedBody{r.Body, limit}
		z, _ := gzips.Get().(*gzip.Reader)
		var err error
		if z == nil {
			z, err = gzip.NewReader(packed)
		} else {
			err = z.Reset(packed)
		}
		if z != nil {
			defer func() {
				_ = z.Reset(nothing{}) // so that the pool holds no request
				gzips.Put(z)
			}()
		}
		if err != nil {
			return nil, readFailure(err, limit, true)
		}
		src = z
	}
	size := int64(4 << 10)
	if length >= 0 {
		size = min(length, firstRead)
	}
	buf := make([]byte, 0, size+1) // one more, so that the end is seen without growing
	for {
		if int64(len(buf)) > limit {
			return nil, tooLarge(limit)
		}
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(2*int64(cap(buf)), max(limit, int64(cap(buf)))+1))
			copy(grown, buf)
			buf = grown
		}
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			if int64(len(buf)) > limit {
				return nil, tooLarge(limit)
			}
			return buf, nil
		}
		if err != nil {
			return nil, readFailure(err, limit, gz)
		}
	}
}

type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }

// A packedBody is a compressed body. More than the limit of it can only be what decompresses to
// nothing (empty gzip members without end), which no limit on decoded bytes would ever stop.
type packedBody struct {
	r    io.Reader
	left int64
}

var errPacked = errors.New("the compressed body is larger than the limit")

// gzipOverhead is more than what gzip adds to a body that does not shrink, up to some gigabytes.
const gzipOverhead = 1 << 20

func (b *packedBody) Read(p []byte) (int, error) {
	if b.left < -gzipOverhead {
		return 0, errPacked
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}

func tooLarge(limit int64) *Refusal {
	return Refuse(http.StatusRequestEntityTooLarge, "too-large", "The request is larger than the limit of %d bytes.", limit)
}

func readFailure(err error, limit int64, gz bool) *Refusal {
	var over *http.MaxBytesError
	switch {
	case errors.Is(err, errPacked):
		return tooLarge(limit)
	case errors.As(err, &over): // a middleware's limit
		return tooLarge(over.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Refuse(http.StatusRequestTimeout, "slow-body", "The request's body did not arrive in time.")
	case gz && (errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum)):
		return Refuse(http.StatusBadRequest, "bad-gzip", "The request's body is not valid gzip: expected whole gzip members and nothing behind them.")
	case gz:
		return Refuse(http.StatusBadRequest, "bad-gzip", "The request's body could not be decompressed: expected whole gzip members, found a damaged or truncated one.")
	}
	return Refuse(http.StatusBadRequest, "cut-body", "The request's body ended before it was complete.")
}
