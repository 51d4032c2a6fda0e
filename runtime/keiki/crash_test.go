package keiki_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/internal/testhost"
	"github.com/backline-dev/backline/runtime"
	"github.com/backline-dev/backline/runtime/keiki"
	"github.com/backline-dev/backline/runtime/ledger/sqlite"
	"github.com/backline-dev/backline/runtime/secret"
)

// pollingChild in the environment makes this test binary a poller, to be killed. Its value is a childConfig.
const pollingChild = "BACKLINE_TEST_POLLING"

type childConfig struct {
	APIBase, APIKey string
	Store           string // of SQLite, or empty for memory
	Roles           bool   // it plays roles; otherwise it says one of three things and no more
}

// pollAsChild says three paragraphs, but never comes to the second one.
func pollAsChild() {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var c childConfig
	if err := json.Unmarshal([]byte(os.Getenv(pollingChild)), &c); err != nil {
		fail(err)
	}
	engine, err := runtime.New(runtime.Config{})
	if err != nil {
		fail(err)
	}
	conf := keiki.InboxConfig{
		Config: keiki.Config{Engine: engine, Adapter: threeThings(1), APIBase: c.APIBase},
		APIKey: secret.Text(c.APIKey),
	}
	if c.Roles {
		conf.Adapter = adapters.Func(playRole)
	}
	if c.Store != "" {
		store, err := sqlite.Open(context.Background(), c.Store, sqlite.Config{})
		if err != nil {
			fail(err)
		}
		if _, err := store.Recover(context.Background(), time.Now(), nil); err != nil {
			fail(err)
		}
		conf.Claims = store
	}
	inbox, err := keiki.NewInbox(conf)
	if err != nil {
		fail(err)
	}
	fail(inbox.Run(context.Background()))
}

// threeThings says three paragraphs, or only so many of them and then nothing for ever.
func threeThings(n int) adapters.Adapter {
	return adapters.Func(func(ctx context.Context, _ *adapters.Turn, w adapters.Writer) error {
		for i := range 3 {
			if i == n {
				<-ctx.Done()
				return ctx.Err()
			}
			if err := w.Text(fmt.Sprintf("message %d\n\n", i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestFaultG4Killed: a process that has sent one of three messages is killed. Another one claims the turn again
// when the lease has run out, and each text is delivered once, under the keys that they would have had.
func TestFaultG4Killed(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable=%v", durable), func(t *testing.T) {
			t.Parallel()
			const lease = 2500 * time.Millisecond
			d := newDesk(t, func(c *deskConfig) { c.platform.Lease = lease })
			id := d.queue(testhost.KeikiTurn{Text: "hello"})
			store := ""
			if durable {
				store = filepath.Join(t.TempDir(), "turns.db")
			}
			conf, err := json.Marshal(childConfig{APIBase: d.url, APIKey: d.platform.APIKey(""), Store: store})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), pollingChild+"="+string(conf))
			var said strings.Builder
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			killed := false
			kill := func() error { killed = true; return errors.Join(cmd.Process.Kill(), ignoreExit(cmd.Wait())) }
			t.Cleanup(func() {
				if !killed {
					_ = kill()
				}
				if t.Failed() {
					t.Logf("the child said:\n%s", said.String())
				}
			})
			d.until("the first message is delivered", func() bool { return len(d.platform.Texts(id)) == 1 })
			if err := kill(); err != nil {
				t.Fatal(err)
			}
			at := time.Now()

			d.work(threeThings(3), func(c *workerConfig) {
				if !durable {
					return
				}
				s := openStore(t, store)
				found, err := s.Recover(t.Context(), time.Now(), nil)
				if err != nil || found.Lost != 1 {
					t.Errorf("recovery: %+v, %v; want one claim lost", found, err)
				}
				c.inbox.Claims = s
			})
			if o := d.outcome(id); o.Status != "completed" {
				t.Errorf("outcome %+v", o)
			}
			if diff := cmp.Diff(paragraphsTo(3), d.platform.Texts(id)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			sends := d.platform.Sends(id)
			if len(sends) != 3 || sends[0].Tries != 2 || sends[1].Tries != 1 || sends[2].Tries != 1 {
				t.Errorf("keys and tries: %+v", sends)
			}
			duplicates := 0
			for _, r := range d.all(id, "messages") {
				if r.Status == http.StatusOK && strings.Contains(string(r.Answer), `"duplicate":true`) {
					duplicates++
				}
			}
			if duplicates != 1 {
				t.Errorf("%d messages were duplicates, want that of the first process", duplicates)
			}
			if claims := d.all(id, "inbox"); len(claims) != 2 || claims[1].At.Add(claims[1].Took).Before(at) {
				t.Errorf("%d claims", len(claims))
			}
		})
	}
}

// ignoreExit is the error of a process that could not be waited for: that it was killed is none.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
