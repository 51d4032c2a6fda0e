//go:build race

package sqlite_test

// raceEnabled tells whether the race detector is in the binary.
const raceEnabled = true
