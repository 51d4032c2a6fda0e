//go:build race

package runtime_test

// raceDetector tells whether allocations are those of the program alone.
const raceDetector = true
