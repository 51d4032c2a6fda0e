package treetest

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// machinePaths are the forms in which a path of somebody's machine gets into a file.
var machinePaths = []*regexp.Regexp{
	regexp.MustCompile(`(?:^|[^\w.])/(?:home|Users)/[a-z][\w.-]*/`),
	regexp.MustCompile(`(?:^|[^\w.])/root/\w`),
	regexp.MustCompile(`[A-Z]:\\\\?Users\\`),
}

// pathsAllowed are files that may hold such a path, with the reason.
var pathsAllowed = map[string]string{}

func TestNoPathsOfAMachine(t *testing.T) {
	t.Parallel()
	tr := load(t)
	search := slices.Clone(machinePaths)
	// The checkout's own folder and the home of whoever runs this, unless they are as short as "/src".
	for _, dir := range []string{tr.root, os.Getenv("HOME"), os.Getenv("GOPATH")} {
		if strings.Count(dir, "/") >= 2 {
			search = append(search, regexp.MustCompile(regexp.QuoteMeta(dir)+`\b`))
		}
	}
	for _, name := range tr.files {
		if _, ok := pathsAllowed[name]; ok {
			continue
		}
		text := tr.read(t, name)
		if bytes.IndexByte(text, 0) >= 0 {
			continue // not a text
		}
		for _, re := range search {
			if at := re.FindIndex(text); at != nil {
				t.Errorf("%s:%d holds a path of a machine: %q", name, 1+bytes.Count(text[:at[0]], []byte("\n")), text[at[0]:at[1]])
			}
		}
	}
}

func TestModuleFileIsTidy(t *testing.T) {
	t.Parallel()
	tr := load(t)
	cmd := exec.CommandContext(t.Context(), "go", "mod", "tidy", "-diff")
	cmd.Dir = tr.root
	out, err := cmd.CombinedOutput()
	if err == nil {
		return
	}
	offline := regexp.MustCompile(`dial tcp|no such host|connection refused|network is unreachable|i/o timeout|lookup disabled`)
	if offline.Match(out) && os.Getenv("CI") == "" {
		t.Skipf("go mod tidy wants a module that is not in the cache, and this machine is offline:\n%s", out)
	}
	t.Errorf("go mod tidy -diff: %v\n%s", err, head(out, 40))
}

// head is the first n lines of out.
func head(out []byte, n int) string {
	lines := strings.SplitAfter(string(out), "\n")
	if len(lines) <= n {
		return string(out)
	}
	return strings.Join(lines[:n], "") + "...\n"
}
