//go:build !race

package keiki_test

const raceEnabled = false
