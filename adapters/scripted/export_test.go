package scripted

// Compile reads one line, for the fuzz test.
func Compile(line string) (name string, ok bool, err error) {
	name, do, err := compile(line)
	return name, do != nil, err
}
