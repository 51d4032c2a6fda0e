package scan

// A Fault says what is wrong with a text. The zero Fault means that nothing is.
type Fault uint8

// The faults. Each function that returns one returns the offset of the first wrong byte with it.
const (
	OK           Fault = iota
	Empty              // nothing but white space
	BOM                // a byte order mark in front
	TooLong            // more than [MaxLen] bytes
	WantValue          // something else where a value is expected
	WantKey            // something else where a key is expected
	WantColon          // something else where a colon is expected
	WantMember         // something else after an object's member
	WantElement        // something else after an array's element
	BadLiteral         // a misspelled true, false or null
	BadNumber          // a number that JSON does not have
	BadEscape          // an escape sequence that JSON does not have
	BadControl         // a control character in a string
	BadUTF8            // a byte that is not part of UTF-8
	Unterminated       // a string without its closing quote
	TooDeep            // an array or object beyond the nesting limit
	DuplicateKey       // a key that its object has already
	Trailing           // something after the value
)

// Faults is the number of faults, [OK] included.
const Faults = int(Trailing) + 1
