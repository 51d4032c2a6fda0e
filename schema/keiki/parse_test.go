package keiki_test

import (
	"os"
	"testing"

	wire "github.com/backline-dev/backline/schema/keiki"
)

func TestFaultA7BigNumbers(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("testdata/keiki-big-numbers.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := wire.ParseRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"orderId":9007199254740993,"big":123456789012345678901234567890,"rate":1.10,"exp":1E+2}`
	if got := string(r.Turn.Context); got != want {
		t.Errorf("context is %s, want %s", got, want)
	}
}
