package wirehttp

// What tests look at from inside.
var (
	AcceptType = acceptType
	Encoding   = encoding
)

const WritePiece = writePiece
