package external

// WithoutInput is a copy of a request that does not know the bytes of its input.
func WithoutInput(r *TurnRequest) *TurnRequest {
	c := *r
	c.input = nil
	return &c
}
