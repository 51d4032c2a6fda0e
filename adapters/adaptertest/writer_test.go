package adaptertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/adapters/adaptertest"
)

// What the pieces say together is what Go reads in them: each byte that is no part of a character is
// U+FFFD, whatever the cuts, and whatever is written in between.
func TestCharactersAreJoined(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.String(),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.StringMatching(`[a-zé渐👩\x{1F680}]{0,20}`),
		).Draw(t, "text")
		w := adaptertest.NewWriter(context.Background(), nil)
		for rest := text; rest != ""; {
			n := rapid.IntRange(0, min(5, len(rest))).Draw(t, "cut")
			var err error
			switch piece := rest[:n]; rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				_, err = w.Write([]byte(piece))
			case 1:
				err = errors.Join(w.Text(piece), w.Status("meanwhile"))
			default:
				err = errors.Join(w.Text(piece), w.Text(""))
			}
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		res := w.End(nil)
		if want := string([]rune(text)); res.Text() != want {
			t.Fatalf("%q came out as %q, want %q", text, res.Text(), want)
		}
		for _, c := range res.Chunks {
			if c == "" || !utf8.ValidString(c) {
				t.Fatalf("chunk %q is empty or not valid", c)
			}
		}
	})
}

func TestFaultA4CharacterSplitBetweenChunks(t *testing.T) {
	t.Parallel()
	const text = "naïve 渐渐 👩🏽‍🚀 — fin"
	for cut := range len(text) + 1 {
		w := adaptertest.NewWriter(t.Context(), nil)
		if err := errors.Join(w.Text(text[:cut]), w.Text(text[cut:])); err != nil {
			t.Fatal(err)
		}
		if got := w.End(nil).Text(); got != text {
			t.Errorf("cut at %d: %q", cut, got)
		}
	}
}

func TestWriteDoesNotKeepItsBytes(t *testing.T) {
	t.Parallel()
	w := adaptertest.NewWriter(t.Context(), nil)
	p := []byte("before")
	if n, err := w.Write(p); n != 6 || err != nil {
		t.Fatalf("Write = %d, %v, want 6, nil", n, err)
	}
	copy(p, "after ")
	if got := w.End(nil).Text(); got != "before" {
		t.Errorf("text %q, want %q", got, "before")
	}
}

func TestWriterForSeveralGoroutines(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 200
	w := adaptertest.NewWriter(t.Context(), nil)
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for n := range each {
				if err := errors.Join(w.Text(fmt.Sprintf("<%d:%d>", i, n)), w.Status("s"), w.Usage(adapters.Usage{Steps: adapters.Count(1)})); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	res := w.End(nil)
	if len(res.Chunks) != writers*each || len(res.Statuses) != writers*each || len(res.UsageReports) != writers*each {
		t.Errorf("%d chunks, %d statuses, %d reports; want %d of each", len(res.Chunks), len(res.Statuses), len(res.UsageReports), writers*each)
	}
	for i := range writers {
		prefix := fmt.Sprintf("<%d:", i)
		mine := slices.DeleteFunc(slices.Clone(res.Chunks), func(c string) bool { return !strings.HasPrefix(c, prefix) })
		for n, c := range mine {
			if want := fmt.Sprintf("<%d:%d>", i, n); c != want {
				t.Fatalf("chunk %d of writer %d is %q, want %q", n, i, c, want)
			}
		}
	}
}

func TestEndAgain(t *testing.T) {
	t.Parallel()
	w := adaptertest.NewWriter(t.Context(), nil)
	if _, err := w.Write([]byte("caf\xc3")); err != nil {
		t.Fatal(err)
	}
	first, second := w.End(nil), w.End(errors.New("later"))
	for _, res := range []*adaptertest.Result{first, second} {
		if res.Text() != "caf\uFFFD" {
			t.Errorf("text %q, want %q", res.Text(), "caf\uFFFD")
		}
	}
	if first.Err != nil || second.Err == nil {
		t.Errorf("errors %v and %v, want nil and the later one", first.Err, second.Err)
	}
}

func TestResultBelongsToTheTest(t *testing.T) {
	t.Parallel()
	w := adaptertest.NewWriter(t.Context(), nil)
	if err := w.Text("a"); err != nil {
		t.Fatal(err)
	}
	w.End(nil).Chunks[0] = "changed"
	if got := w.End(nil).Text(); got != "a" {
		t.Errorf("text %q, want %q", got, "a")
	}
	if late := new(adaptertest.Result).Late(); late != 0 {
		t.Errorf("an empty result has %d late calls", late)
	}
}
