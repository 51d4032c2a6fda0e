package manifest_test

import goruntime "runtime"

// allocated is how many bytes f allocates. Tests that use it do not run in parallel.
func allocated(f func()) uint64 {
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	f()
	goruntime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
