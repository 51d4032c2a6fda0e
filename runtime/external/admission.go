package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/backline-dev/backline/runtime/internal/wirehttp"
	"github.com/backline-dev/backline/runtime/ledger"
	wire "github.com/backline-dev/backline/schema/external"
)

// admitted keeps documents as they were read, so that a turn does not read them anew. What is in force
// is the ledger's to say each time.
type admitted struct {
	mu       sync.Mutex
	profiles map[string]reading[wire.Profile]
	bindings map[string]reading[wire.Binding]
}

type reading[D any] struct {
	doc    []byte
	parsed *D
}

// binding is the parsed document of an admission. It is shared: nobody changes it.
func (c *admitted) binding(a *ledger.Admission) (*wire.Binding, error) {
	return read(&c.mu, &c.bindings, a, wire.ParseBinding)
}

func (c *admitted) profile(a *ledger.Admission) (*wire.Profile, error) {
	return read(&c.mu, &c.profiles, a, wire.ParseProfile)
}

func read[D any](mu *sync.Mutex, known *map[string]reading[D], a *ledger.Admission, parse func([]byte) (*D, error)) (*D, error) {
	mu.Lock()
	defer mu.Unlock()
	if r, ok := (*known)[a.Ref]; ok && bytes.Equal(r.doc, a.Document) {
		return r.parsed, nil
	}
	d, err := parse(a.Document)
	if err != nil {
		return nil, fmt.Errorf("the admitted %s %q: %w", a.Kind, a.Ref, err)
	}
	if *known == nil {
		*known = map[string]reading[D]{}
	}
	(*known)[a.Ref] = reading[D]{a.Document, d}
	return d, nil
}

// errDigest refuses a document whose own digest does not verify.
var errDigest = errors.New("binding/digest is not that of the document with this field set to an empty string")

// admission makes of a document what the ledger is offered. The error is a [*wire.Error] or errDigest.
func admission(kind ledger.Kind, doc []byte, source ledger.Source) (ledger.Admission, error) {
	a := ledger.Admission{Kind: kind, Document: bytes.TrimSpace(doc), Source: source}
	if kind == ledger.Profile {
		p, err := wire.ParseProfile(doc)
		if err != nil {
			return a, err
		}
		digest, err := wire.CanonicalDigest(doc)
		if err != nil {
			return a, err
		}
		a.Ref, a.Generation, a.Digest = string(p.ProfileRef), p.ProfileGeneration, ledger.Digest(digest)
		return a, nil
	}
	b, err := wire.ParseBinding(doc)
	if err != nil {
		return a, err
	}
	switch digest, err := wire.DigestWithout(doc, "binding/digest"); {
	case err != nil:
		return a, errDigest
	case digest != b.BindingDigest: // no secret: it is a digest of what was sent
		return a, fmt.Errorf("%w, which is %s", errDigest, digest)
	}
	a.Ref, a.Digest = string(b.BindingRef), ledger.Digest(b.BindingDigest)
	return a, nil
}

// An Admitted tells what became of one file of admissions.
type Admitted struct {
	File string // its name within the directory
	Kind ledger.Kind
	Ref  string
	// Change is empty where Err is not nil.
	Change ledger.Change
	Err    error
}

// maxAdmission is the longest file that is read as an admission, in bytes.
const maxAdmission = 1 << 20

// LoadAdmissions admits the profiles and bindings in dir: each file there whose name ends in ".json", in
// the order of the names, profiles before bindings. It may be called again, to read what has changed. A file
// that is not there any more revokes nothing, and nothing that is read lifts a revocation: only an
// operator's PUT does.
//
// It goes on after a bad file. The results have one entry a file, and the error joins all that is
// wrong, each with its file's name; nothing of a bad file is admitted. Where ctx ends while the system does
// not give a file's content, as on a disk of the network that has gone, the error is its cause, and nothing
// is admitted.
func (h *Handler) LoadAdmissions(ctx context.Context, dir string) ([]Admitted, error) {
	files, err := readAdmissions(ctx, dir)
	if err != nil {
		return nil, err
	}
	return h.admit(ctx, files)
}

// OpenAdmissions is LoadAdmissions for the start of a server: with a mistake in any file nothing is admitted,
// and each result has its mistake or no Change.
func (h *Handler) OpenAdmissions(ctx context.Context, dir string) ([]Admitted, error) {
	files, err := readAdmissions(ctx, dir)
	if err != nil {
		return nil, err
	}
	if results, err := resultsOf(files); err != nil {
		return results, err
	}
	return h.admit(ctx, files)
}

// An admissionFile is what was read of a file.
type admissionFile struct {
	Admitted
	offer ledger.Admission // where Err is nil
}

func resultsOf(files []admissionFile) ([]Admitted, error) {
	results, errs := make([]Admitted, len(files)), make([]error, len(files))
	for i := range files {
		results[i], errs[i] = files[i].Admitted, files[i].Err
	}
	return results, errors.Join(errs...)
}

// admit offers what was read to the ledger, profiles first.
func (h *Handler) admit(ctx context.Context, files []admissionFile) ([]Admitted, error) {
	for _, kind := range []ledger.Kind{ledger.Profile, ledger.Binding} {
		for i := range files {
			f := &files[i]
			if f.Err != nil || f.Kind != kind {
				continue
			}
			if _, f.Change, f.Err = h.store.Admit(ctx, f.offer, time.Now()); f.Err != nil {
				f.Err = fmt.Errorf("admissions: %s: %w", f.File, f.Err)
			}
		}
	}
	return resultsOf(files)
}

// readAdmissions reads a directory. It does not wait for the system longer than ctx: what hangs is left
// behind.
func readAdmissions(ctx context.Context, dir string) ([]admissionFile, error) {
	type result struct {
		files []admissionFile
		err   error
	}
	read := make(chan result, 1)
	go func() {
		files, err := readDirectory(dir)
		read <- result{files, err}
	}()
	select {
	case r := <-read:
		return r.files, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("admissions: %s could not be read in time: %w", dir, context.Cause(ctx))
	}
}

func readDirectory(dir string) ([]admissionFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("admissions: %w", err)
	}
	var files []admissionFile
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		f := admissionFile{Admitted: Admitted{File: e.Name()}}
		if f.offer, f.Err = readAdmission(filepath.Join(dir, e.Name())); f.Err != nil {
			f.Err = fmt.Errorf("admissions: %s: %w", f.File, f.Err)
		} else {
			f.Kind, f.Ref = f.offer.Kind, f.offer.Ref
			if i := slices.IndexFunc(files, func(o admissionFile) bool { return o.Kind == f.Kind && o.Ref == f.Ref }); i >= 0 {
				f.Err = fmt.Errorf("admissions: %s: the %s %q is also in %s", f.File, f.Kind, f.Ref, files[i].File)
			}
		}
		files = append(files, f)
	}
	return files, nil
}

// readFile reads a file of admissions: a regular one, whatever its name is a link to, and no more of it than
// may be there. A pipe or a device could give content without end, or none and no end.
func readFile(path string) (content []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is opened without waiting for its writer
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("it is no regular file, but %s", kindOf(info.Mode()))
	}
	content, err = io.ReadAll(io.LimitReader(f, maxAdmission+1))
	if err == nil && len(content) > maxAdmission {
		err = fmt.Errorf("it has more than %d bytes", maxAdmission)
	}
	return content, err
}

func kindOf(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&os.ModeNamedPipe != 0:
		return "a pipe"
	case m&os.ModeSocket != 0:
		return "a socket"
	case m&os.ModeDevice != 0:
		return "a device"
	}
	return "something else"
}

func readAdmission(path string) (ledger.Admission, error) {
	doc, err := readFile(path)
	if err != nil {
		return ledger.Admission{}, err
	}
	switch kind, _ := wire.DocumentOf(doc); kind {
	case wire.ProfileV1:
		return admission(ledger.Profile, doc, ledger.Directory)
	case wire.BindingV1:
		return admission(ledger.Binding, doc, ledger.Directory)
	}
	if err := wire.Check(wire.BindingV1, doc); err != nil { // for malformed JSON it tells the place
		var bad *wire.Error
		if errors.As(err, &bad) && bad.Syntax != nil {
			return ledger.Admission{}, err
		}
	}
	return ledger.Admission{}, fmt.Errorf("its schema is neither %s nor %s", wire.ProfileV1, wire.BindingV1)
}

func (h *Handler) putAdmission(kind ledger.Kind) endpoint {
	return func(w http.ResponseWriter, r *http.Request) *problem {
		ref, p := refOf(r)
		if p != nil {
			return unread(r, p)
		}
		doc, p := h.readBody(w, r)
		if p != nil {
			return p
		}
		a, err := admission(kind, doc, ledger.Operator)
		switch {
		case errors.Is(err, errDigest):
			return problemf(http.StatusUnprocessableEntity, "binding-digest", "The %s.", err)
		case err != nil:
			return malformed(err, documentOf(kind), doc)
		case a.Ref != ref:
			return problemf(http.StatusBadRequest, "ref", "The path names %s and the document %s.", wirehttp.Excerpt(ref), wirehttp.Excerpt(a.Ref))
		}
		known, change, err := h.store.Admit(r.Context(), a, time.Now())
		if err != nil {
			return h.storeProblem(r.Context(), "admit", err)
		}
		h.log.InfoContext(r.Context(), "admitted", "kind", string(kind), "ref", ref, "digest", string(a.Digest), "change", string(change))
		status := http.StatusOK
		if change == ledger.Admitted {
			status = http.StatusCreated
		}
		writeJSON(w, status, admissionOf(&known, change))
		return nil
	}
}

func (h *Handler) getAdmission(kind ledger.Kind) endpoint {
	return func(w http.ResponseWriter, r *http.Request) *problem {
		ref, p := refOf(r)
		if p != nil {
			return p
		}
		a, err := h.store.Admission(r.Context(), kind, ref)
		if errors.Is(err, ledger.ErrNotFound) {
			return unknownAdmission(kind, ref)
		}
		if err != nil {
			return h.storeProblem(r.Context(), "read", err)
		}
		writeJSON(w, http.StatusOK, admissionOf(&a, ""))
		return nil
	}
}

func (h *Handler) deleteAdmission(kind ledger.Kind) endpoint {
	return func(w http.ResponseWriter, r *http.Request) *problem {
		ref, p := refOf(r)
		if p != nil {
			return p
		}
		a, err := h.store.Withdraw(r.Context(), kind, ref, time.Now())
		if errors.Is(err, ledger.ErrNotFound) {
			return unknownAdmission(kind, ref)
		}
		if err != nil {
			return h.storeProblem(r.Context(), "withdraw", err)
		}
		h.log.InfoContext(r.Context(), "withdrawn", "kind", string(kind), "ref", ref)
		writeJSON(w, http.StatusOK, admissionOf(&a, ""))
		return nil
	}
}

func unknownAdmission(kind ledger.Kind, ref string) *problem {
	return problemf(http.StatusNotFound, "unknown", "No %s %s was admitted.", kind, wirehttp.Excerpt(ref))
}

func documentOf(kind ledger.Kind) wire.Document {
	if kind == ledger.Profile {
		return wire.ProfileV1
	}
	return wire.BindingV1
}

// An admissionDocument is what an operator is told of an admission.
type admissionDocument struct {
	Profile     json.RawMessage `json:"profile,omitempty"`
	Binding     json.RawMessage `json:"binding,omitempty"`
	State       string          `json:"state"` // admitted, disabled, revoked
	Change      ledger.Change   `json:"change,omitempty"`
	AdmittedAt  time.Time       `json:"admitted/at"`
	WithdrawnAt *time.Time      `json:"withdrawn/at,omitempty"`
}

func admissionOf(a *ledger.Admission, change ledger.Change) admissionDocument {
	d := admissionDocument{State: "admitted", Change: change, AdmittedAt: a.AdmittedAt}
	if a.Kind == ledger.Profile {
		d.Profile = a.Document
	} else {
		d.Binding = a.Document
	}
	if !a.InForce() {
		d.WithdrawnAt = &a.WithdrawnAt
		d.State = "revoked"
		if a.Kind == ledger.Profile {
			d.State = "disabled"
		}
	}
	return d
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // documents were read before they were kept
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	wirehttp.Answer(w, status, b.Bytes())
}
