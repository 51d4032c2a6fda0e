package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// ErrKilled reports that a second signal ended the server at once.
var ErrKilled = errors.New("ended by a second signal")

// Serve hosts the plugin until ctx is done or the process gets SIGINT or SIGTERM, then drains: readiness
// answers 503 and new turns are refused, running ones have Config.Drain to end, what is left is cancelled.
// SIGHUP reads the directory of [External.Admissions] again, where there is one.
// It returns nil after a drain, [ErrKilled] after a second signal, a [*ConfigError] where conf is wrong,
// and otherwise why the server could not run.
func Serve(ctx context.Context, conf Config) error {
	p, err := New(conf)
	if err != nil {
		return err
	}
	return p.ListenAndServe(ctx)
}

// ListenAndServe is [Serve] for a plugin that was made with New.
func (p *Plugin) ListenAndServe(ctx context.Context) error {
	if err := p.conf.checkListen(); err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", p.conf.Listen)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s is in use: stop the other server or listen on another address: %w", p.conf.Listen, err)
		}
		return fmt.Errorf("listen on %s: %w", p.conf.Listen, err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	defer p.reloading(ctx)()
	if p.conf.OnListen != nil {
		p.conf.OnListen(ln.Addr())
	}
	return p.serve(ctx, ln, signals)
}

// ServeListener is ListenAndServe on a listener of the caller's, which it closes, and without signals:
// only ctx ends it.
func (p *Plugin) ServeListener(ctx context.Context, ln net.Listener) error {
	return p.serve(ctx, ln, nil)
}

func (p *Plugin) serve(ctx context.Context, ln net.Listener, signals <-chan os.Signal) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler:           p,
		Protocols:         &protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       p.conf.IdleConn,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(p.conf.Logger.Handler(), slog.LevelDebug),
		// No ReadTimeout and no WriteTimeout: they count the whole exchange and would cut long streams.
		// Reading a body and each write have limits of their own.
		ConnContext: boundSendBuffer,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()

	sweeping, stopSweeping := context.WithCancel(context.WithoutCancel(ctx))
	var upkeep sync.WaitGroup
	upkeep.Go(func() { p.upkeep(sweeping) })
	defer upkeep.Wait()
	defer stopSweeping()

	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	case s := <-signals:
		p.conf.Logger.Info("draining; a second signal ends at once", "signal", s.String(), "limit", p.conf.Drain)
	}

	// The listener stays open meanwhile, so that hosts and load balancers are told.
	drain, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if p.conf.Drain > 0 {
		drain, cancel = context.WithTimeout(context.WithoutCancel(ctx), p.conf.Drain)
	}
	defer cancel()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		if err := p.Drain(drain); err != nil {
			p.conf.Logger.Warn("turns were cancelled at the end of the drain", "limit", p.conf.Drain)
		}
		// The last lines are on their way; what is idle is closed.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		p.turns.Wait(end)
		if err := server.Shutdown(end); err != nil {
			_ = server.Close() // connections that take nothing
		}
	}()
	select {
	case <-drained:
		<-failed //nolint:errcheck // http.ErrServerClosed
		return nil
	case <-second(signals, drained):
		p.engine.CancelAll() // before the connections go, or it would look as if the hosts had
		cancel()
		_ = server.Close()
		<-failed         //nolint:errcheck // http.ErrServerClosed
		return ErrKilled // at once: the drain that is given up ends by itself within the adapters' grace
	}
}

// sameSignal is how close two signals are taken for one: some wrappers signal a process and then its
// group.
const sameSignal = 100 * time.Millisecond

// second passes on a signal that is not the echo of the one before, which came just now. It ends with done.
func second(signals <-chan os.Signal, done <-chan struct{}) <-chan os.Signal {
	if signals == nil {
		return nil
	}
	out := make(chan os.Signal, 1)
	first := time.Now()
	go func() {
		for {
			select {
			case s := <-signals:
				if time.Since(first) > sameSignal {
					out <- s
					return
				}
			case <-done:
				return
			}
		}
	}()
	return out
}

// sendBuffer is the kernel's buffer of a connection in bytes; Linux takes twice that. Left alone it grows to
// megabytes, and as a writer is only woken when a third of it is free, a slow reader would look like one that
// takes nothing.
const sendBuffer = 128 << 10

func boundSendBuffer(ctx context.Context, c net.Conn) context.Context {
	if b, ok := c.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = b.SetWriteBuffer(sendBuffer) // a hint
	}
	return ctx
}
