package main

import (
	"log"
	"net/http"
	"time"
)

// accessLog stands for middleware of somebody else's that wraps the ResponseWriter.
func accessLog(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		c := &counter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(c, r)
		log.Printf("%s %s: %d, %d bytes in %v", r.Method, r.URL.Path, c.status, c.bytes, time.Since(began).Round(time.Millisecond))
	})
}

// counter notes what a handler answers with.
type counter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (c *counter) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.bytes += int64(n)
	return n, err
}

// Unwrap lets flushes and deadlines through. Without it events would wait in the server's buffer:
// Plugin.CheckMiddleware finds that at the start.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
