//go:build race

package lowkey_test

const raceEnabled = true
