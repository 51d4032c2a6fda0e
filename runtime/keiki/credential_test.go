package keiki

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backline-dev/backline/runtime/secret"
)

const testKey secret.Text = "whsec_bm90LWEtcmVhbC1zZWNyZXQtZm9yLXRlc3Rz"

// TestFixedCredentials: what JavaScript's JSON.stringify and HMAC made of the same values, the first one held
// against openssl too.
func TestFixedCredentials(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		agent, turn string
		at          int64
		want        string
	}{
		{
			"agent-1", "turn-1", 1764547200,
			"kts1.eyJhIjoiYWdlbnQtMSIsInQiOiJ0dXJuLTEiLCJ0cyI6MTc2NDU0NzIwMH0.0c0c0063bb31eff7da38de0cd20b28666608164937d5d7bfc00f56215cf0e1ed",
		},
		{
			"a\"\\\u2028<&>\u007f\u0001\b\f\n\r\t/é😀", "t??>>~~", 0,
			"kts1.eyJhIjoiYVwiXFzigKg8Jj5_XHUwMDAxXGJcZlxuXHJcdC_DqfCfmIAiLCJ0IjoidD8_Pj5-fiIsInRzIjowfQ.4b7de65a22c4a440fdb73d3bc9da0fa0fec25c19e59d43e344520972aaec475e",
		},
	} {
		if got := SignCredential(testKey, test.agent, test.turn, time.Unix(test.at, 999_999_999)).Reveal(); got != test.want {
			t.Errorf("SignCredential(%q, %q) = %s, want %s", test.agent, test.turn, got, test.want)
		}
	}
}

// TestCredentialPayload: whatever the ids are, the payload is JSON that says them.
func TestCredentialPayload(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for c := rune(0); c < 0x3000; c++ {
		all.WriteRune(c)
	}
	for id, want := range map[string]string{"": "", all.String(): all.String(), "\xffa\xc3": "\uFFFDa\uFFFD"} {
		parts := strings.Split(SignCredential(testKey, id, "t", time.Unix(12, 0)).Reveal(), ".")
		if len(parts) != 3 || parts[0] != "kts1" {
			t.Fatalf("%d parts", len(parts))
		}
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			A, T string
			TS   int64
		}
		if err := json.Unmarshal(payload, &got); err != nil || got.A != want || got.T != "t" || got.TS != 12 {
			t.Errorf("the payload says %q %q %d (%v)", got.A, got.T, got.TS, err)
		}
	}
}

// TestBearer signs again after four minutes and not before.
func TestBearer(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1764547200, 500)
	b := newBearer(testKey, "agent-1", "turn-1")
	at := func(d time.Duration) secret.Text { return b.current(begin.Add(d)) }
	sign := func(d time.Duration) secret.Text {
		return SignCredential(testKey, "agent-1", "turn-1", begin.Add(d))
	}
	for _, step := range []struct{ at, signed time.Duration }{
		{0, 0}, {time.Second, 0}, {4*time.Minute - 1, 0},
		{4 * time.Minute, 4 * time.Minute}, {7 * time.Minute, 4 * time.Minute},
		{time.Hour, time.Hour},
		{time.Minute, time.Minute}, // the clock was put back
		{2 * time.Minute, time.Minute},
	} {
		if at(step.at) != sign(step.signed) {
			t.Errorf("after %v: not the credential signed after %v", step.at, step.signed)
		}
	}
}

// TestBearerIsShared by the goroutines of a turn: at each moment all have one that holds for a minute more.
func TestBearerIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBearer(testKey, "agent-1", "turn-1")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range 100 {
					payload, err := base64.RawURLEncoding.DecodeString(strings.Split(b.current(time.Now()).Reveal(), ".")[1])
					var p struct{ TS int64 }
					if err == nil {
						err = json.Unmarshal(payload, &p)
					}
					if age := time.Since(time.Unix(p.TS, 0)); err != nil || age >= 4*time.Minute+time.Second || age < 0 {
						t.Errorf("a credential of the age %v (%v)", age, err)
					}
					time.Sleep(7 * time.Second)
				}
			})
		}
		wg.Wait()
	})
}

func TestAppendStringifiedAllocates(t *testing.T) {
	b := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() { b = appendStringified(b[:0], "agent-1\n") }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
