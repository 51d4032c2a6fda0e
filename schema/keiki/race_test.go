//go:build race

package keiki_test

const raceEnabled = true
