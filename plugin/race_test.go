//go:build race

package plugin_test

// slowness is how much longer things may take under the race detector.
const slowness = 10
