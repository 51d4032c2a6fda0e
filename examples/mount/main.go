// Mount is a plugin inside an http.Server that serves other things too, behind middleware that knows
// nothing of streams. It is hosted for Lowkey, and for agent.external-runtime (Orbiplex) under what is admitted.
//
//	MUSE_TOKEN=… go run ./examples/mount -admissions examples/reviewer/admitted
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/backline-dev/backline/adapters"
	"github.com/backline-dev/backline/plugin"
)

// read reads the message back, one word after another.
func read(ctx context.Context, turn *adapters.Turn, w adapters.Writer) error {
	for word := range strings.FieldsSeq(turn.Message) {
		if err := w.Text(word + " "); err != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// Orbiplex fails a turn that does not say what it used.
	return w.Usage(adapters.Usage{Tokens: adapters.Count(0), CostMicros: adapters.Count(0)})
}

func home(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "nothing to see here\n") // whoever has left misses nothing
}

// handler is the whole server's: its own pages, and the plugin under a prefix of theirs.
func handler(muse *plugin.Plugin) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", home)
	mux.Handle("/agents/", muse)
	return accessLog(mux)
}

// upkeep does what plugin.Serve does by itself, until ctx is done: it reads the admissions again on a signal, and
// forgets content whose time is over.
func upkeep(ctx context.Context, muse *plugin.Plugin, hup <-chan os.Signal) {
	sweep := time.NewTicker(10 * time.Minute)
	defer sweep.Stop()
	for {
		select {
		case <-hup:
			switch files, err := muse.LoadAdmissions(ctx); {
			case err != nil:
				log.Print(err)
			default:
				log.Printf("read %d files of admissions again", len(files))
			}
		case <-sweep.C:
			if err := muse.Sweep(ctx); err != nil {
				log.Print(err)
			}
		case <-ctx.Done():
			return
		}
	}
}

func run(listen, admissions string) error {
	muse, err := plugin.New(plugin.Config{
		ID:      "muse",
		Adapter: adapters.Func(read),
		Prefix:  "/agents",
		// Whoever reaches this server could run turns. New refuses a token that is missing or short.
		Tokens: map[string]plugin.Secret{"lowkey": plugin.Secret(os.Getenv("MUSE_TOKEN"))},
		// In memory: give it a Store of runtime/ledger/sqlite, which is closed after the drain, to keep the facts
		// of turns.
		External: &plugin.External{Admissions: admissions},
	})
	if err != nil {
		return err
	}
	h := handler(muse)
	if err := muse.CheckMiddleware(h); err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}

	told, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	keeping, leave := context.WithCancel(context.Background())
	var kept sync.WaitGroup
	kept.Go(func() { upkeep(keeping, muse, hup) })
	defer kept.Wait()
	defer leave()
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("listening on http://%s\n", ln.Addr())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return err
	case <-told.Done():
		stop() // a second signal ends the program at once
	}

	// First the turns: new ones are refused, running ones may end. Then the server, which is idle now.
	drain, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := muse.Drain(drain); err != nil {
		log.Print("turns were cancelled at the end of the drain")
	}
	end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(end); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "listen on this `host:port`")
	admissions := flag.String("admissions", "", "admit the profiles and bindings in this `directory`, at the start and on SIGHUP")
	flag.Parse()
	if err := run(*listen, *admissions); err != nil {
		log.Fatal(err)
	}
}
