package external

// stopHook is called between the facts that are committed, by name; tests set it to stop the process
// there. It is not changed while turns run.
var stopHook func(name string)

func stopPoint(name string) {
	if stopHook != nil {
		stopHook(name)
	}
}
