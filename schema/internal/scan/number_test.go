package scan

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestInteger(t *testing.T) {
	t.Parallel()
	nines := strings.Repeat("9", 400)
	for _, tc := range []struct {
		text string
		n    int64
		ok   bool
	}{
		{"0", 0, true}, {"-0", 0, true}, {"0.000", 0, true}, {"0e999999999999999999999", 0, true}, {"-0.0e-5", 0, true},
		{"1", 1, true}, {"1.0", 1, true}, {"1e0", 1, true}, {"10e-1", 1, true}, {"0.1e1", 1, true}, {"100.00E-2", 1, true},
		{"40", 40, true}, {"40.0", 40, true}, {"4e1", 40, true}, {"4E+1", 40, true}, {"0.0040e4", 40, true}, {"-40.0", -40, true},
		{"1.5", 0, false}, {"1e-1", 0, false}, {"0.1", 0, false}, {"1.00000000000000000000000000000000001", 0, false},
		{"15e-2", 0, false}, {"1e-999999999999999999999", 0, false}, {"1" + strings.Repeat("0", 50) + "e-51", 0, false},
		{"1" + strings.Repeat("0", 50) + "e-50", 1, true},
		{"9007199254740993", 9007199254740993, true},
		{"9223372036854775807", math.MaxInt64, true}, {"9223372036854775808", math.MaxInt64, true},
		{"-9223372036854775808", math.MinInt64, true}, {"-9223372036854775809", math.MinInt64, true},
		{"9999999999999999999", math.MaxInt64, true}, {"18446744073709551616", math.MaxInt64, true},
		{"1e18", 1e18, true}, {"1e19", math.MaxInt64, true}, {"-1e19", math.MinInt64, true},
		{"1e999999999999999999999", math.MaxInt64, true}, {nines, math.MaxInt64, true}, {nines + ".5", 0, false},
	} {
		if end, f := Number([]byte(tc.text), 0); f != OK || end != len(tc.text) {
			t.Fatalf("Number(%.40q) = %d, %d", tc.text, end, f)
		}
		if n, ok := Integer([]byte(tc.text)); n != tc.n || ok != tc.ok {
			t.Errorf("Integer(%.40q) = %d, %v, want %d, %v", tc.text, n, ok, tc.n, tc.ok)
		}
	}
}

// number draws the text of a JSON number.
var number = rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?`)

func TestIntegerAndPlainKeepTheValue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := number.Draw(t, "number")
		want, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("big.Rat does not take %q", text)
		}
		got, ok := new(big.Rat).SetString(Plain([]byte(text)))
		if !ok || got.Cmp(want) != 0 {
			t.Errorf("Plain(%q) = %q, another number", text, Plain([]byte(text)))
		}
		n, isInt := Integer([]byte(text))
		if isInt != want.IsInt() {
			t.Fatalf("Integer(%q) says %v", text, isInt)
		}
		if !isInt {
			return
		}
		exact := want.Num()
		switch {
		case exact.IsInt64() && exact.Int64() != n,
			!exact.IsInt64() && exact.Sign() > 0 && n != math.MaxInt64,
			!exact.IsInt64() && exact.Sign() < 0 && n != math.MinInt64:
			t.Errorf("Integer(%q) = %d", text, n)
		}
	})
}

func TestPlainIsSmall(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("9", 100_000)
	for _, text := range []string{
		"1e999999999", "-1e999999999", "1e-999999999", "1.5e-999999999", "1e99999999999999999999999999",
		long, "-" + long, "0." + long, long + ".5", long + "." + long, long + "e-50000", long + "e-99999", long + "e50000",
		"0." + strings.Repeat("0", 100_000) + "1", "1" + strings.Repeat("0", 100_000), "1" + strings.Repeat("0", 100_000) + ".1",
		"1" + strings.Repeat("0", 700) + ".5", "1" + strings.Repeat("0", 900) + ".5", "1." + strings.Repeat("0", 900) + "5",
	} {
		plain := Plain([]byte(text))
		if len(plain) > 900 {
			t.Errorf("Plain(%.20q…) has %d bytes", text, len(plain))
		}
		r, ok := new(big.Rat).SetString(plain)
		if !ok {
			t.Errorf("big.Rat does not take Plain(%.20q…) = %q", text, plain)
			continue
		}
		if _, isInt := Integer([]byte(text)); r.IsInt() != isInt {
			t.Errorf("Plain(%.20q…) = %.20q…, an integer: %v, want %v", text, plain, r.IsInt(), isInt)
		}
		if negative := text[0] == '-'; r.Sign() == 0 || (r.Sign() < 0) != negative {
			t.Errorf("Plain(%.20q…) = %.20q…, of another sign", text, plain)
		}
	}
	if r, _ := new(big.Rat).SetString(Plain([]byte("1." + strings.Repeat("0", 900) + "5"))); r.Cmp(big.NewRat(1, 1)) <= 0 {
		t.Error("a number a little above 1 became 1")
	}
}
