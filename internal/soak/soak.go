// Package soak says how long the long tests are. In the ordinary tests they are short, or left out;
// `make soak` sets the variables that make them long. A long test has Soak in its name, which is what
// `make soak` runs.
package soak

import (
	"os"
	"strconv"
	"testing"
)

// The variables of the environment.
const (
	turnsEnv = "BACKLINE_SOAK_TURNS"
	killsEnv = "BACKLINE_SOAK_KILLS"
)

// Turns is how many turns a server is given: otherwise, in the ordinary tests.
func Turns(t testing.TB, otherwise int) int {
	t.Helper()
	return number(t, turnsEnv, otherwise)
}

// Kills is how often a process is killed: otherwise, in the ordinary tests.
func Kills(t testing.TB, otherwise int) int {
	t.Helper()
	return number(t, killsEnv, otherwise)
}

// Only skips a test that takes minutes, in the ordinary tests.
func Only(t testing.TB) {
	t.Helper()
	if os.Getenv(turnsEnv) == "" && os.Getenv(killsEnv) == "" {
		t.Skip("a long test: run make soak")
	}
}

func number(t testing.TB, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a whole number of at least 1", name, text)
	}
	return n
}
