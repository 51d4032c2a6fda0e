package external

// SetStopHook has f called between the facts that are committed.
func SetStopHook(f func(name string)) { stopHook = f }
