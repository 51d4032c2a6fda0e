package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/backline-dev/backline/internal/cli"
	"github.com/backline-dev/backline/schema/external"
)

// TestAdviceIsTheDocuments: what chat says about a reason code is what the table of the documentation says, and
// the table has every code.
func TestAdviceIsTheDocuments(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "external-runtime.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(doc), "\n## Reason codes\n")
	if !ok {
		t.Fatal("the table of reason codes is not where it was")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	row := regexp.MustCompile("(?m)^\\| (?:`([a-z-]+)` )?\\| (completed|refused|failed|cancelled|unknown) \\| .* \\| (.*) \\|$")
	link := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	told := map[external.ReasonCode]bool{}
	n, code := 0, external.ReasonCode("")
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		if m[1] != "" {
			code = external.ReasonCode(m[1])
		}
		told[code] = true
		status, want := external.Status(m[2]), strings.ReplaceAll(link.ReplaceAllString(m[3], "$1"), "`", "")
		if status == external.StatusCompleted || status == external.StatusCancelled {
			want = "" // nothing has gone wrong
		} else {
			n++
		}
		if got := cli.Advice[status][code]; got != want {
			t.Errorf("%s %s: chat says %q, the document %q", status, code, got, want)
		}
	}
	for _, code := range external.Values[external.ReasonCode]() {
		if !told[code] {
			t.Errorf("the table does not have %s", code)
		}
	}
	have := 0
	for _, codes := range cli.Advice {
		have += len(codes)
	}
	if have != n {
		t.Errorf("chat knows %d rows, and the table has %d", have, n)
	}
}
