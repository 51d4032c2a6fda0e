package external

// WithoutBytes is a copy of a request that does not know the bytes that it came in.
func WithoutBytes(r *TurnRequest) *TurnRequest {
	c := *r
	c.body, c.input = nil, nil
	return &c
}
