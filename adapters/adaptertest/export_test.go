package adaptertest

import (
	"time"

	"github.com/backline-dev/backline/adapters"
)

// Problems runs one case of the suite with short limits and returns what it found, for tests of
// adapters that must not pass.
func Problems(c Case, s Suite, newAdapter func() adapters.Adapter) []string {
	e := newExercise(s, newAdapter)
	e.atMost, e.promptly, e.silence = 5*time.Second, 500*time.Millisecond, 20*time.Millisecond
	for _, x := range exercises {
		if x.name == c {
			return e.problems(x.run)
		}
	}
	panic("no such case: " + c)
}
