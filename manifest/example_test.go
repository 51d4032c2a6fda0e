package manifest_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/backline-dev/backline/manifest"
	"github.com/backline-dev/backline/schema"
)

const doc = `{
  "id": "muse",
  "version": 1.10,
  "agent": {
    "runtime": "external:muse",
    "endpoint": "http://127.0.0.1:8787/lowkey/turn"
  }
}
`

func ExampleParse() {
	_, err := manifest.Parse([]byte(`{"id": "muse", "id": "other"}`))
	if e, ok := errors.AsType[*schema.SyntaxError](err); ok {
		fmt.Println(e.Line, e.Column, e.Message)
	}
	// Output: 1 16 duplicate key "id"
}

func ExampleLoad() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "manifest.json")
	if err := os.WriteFile(path, []byte(doc), 0o644); err != nil {
		log.Fatal(err)
	}

	m, err := manifest.Load(path)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.ID(), m.Agents()[0].Endpoint)
	// Output: muse http://127.0.0.1:8787/lowkey/turn
}

func ExampleNew() {
	m, err := manifest.New("muse", "https://muse.example/lowkey/turn")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", m.Bytes())
	// Output:
	// {
	//   "id": "muse",
	//   "agent": {
	//     "runtime": "external:muse",
	//     "endpoint": "https://muse.example/lowkey/turn"
	//   }
	// }
}

func ExampleManifest_Check() {
	m, err := manifest.Parse([]byte("{\n  \"id\": \"muse\",\n  \"agent\": {\"runtime\": \"external:amuse\"}\n}"))
	if err != nil {
		log.Fatal(err)
	}
	if e, ok := errors.AsType[*manifest.Error](m.Check()); ok {
		for _, v := range e.Violations {
			fmt.Println(v)
		}
	}
	// Output:
	// /agent/endpoint is missing, expected an absolute http or https URL (line 3, column 12)
	// /agent/runtime is "external:amuse", expected "external:" and the manifest's own id, "muse" (line 3, column 24)
}

func ExampleManifest_SetEndpoint() {
	m, err := manifest.Parse([]byte(doc))
	if err != nil {
		log.Fatal(err)
	}
	if err := m.SetEndpoint("https://muse.example/turn"); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", m.Bytes())
	// Output:
	// {
	//   "id": "muse",
	//   "version": 1.10,
	//   "agent": {
	//     "runtime": "external:muse",
	//     "endpoint": "https://muse.example/turn"
	//   }
	// }
}

func ExampleManifest_Set() {
	m, err := manifest.Parse([]byte(doc))
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Set("/name", "Muse"); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", m.Bytes())
	// Output:
	// {
	//   "id": "muse",
	//   "version": 1.10,
	//   "agent": {
	//     "runtime": "external:muse",
	//     "endpoint": "http://127.0.0.1:8787/lowkey/turn"
	//   },
	//   "name": "Muse"
	// }
}

func ExampleManifest_Raw() {
	m, err := manifest.Parse([]byte(doc))
	if err != nil {
		log.Fatal(err)
	}
	version, ok := m.Raw("/version")
	fmt.Printf("%s %t\n", version, ok)
	_, ok = m.Raw("/Version")
	fmt.Println(ok)
	// Output:
	// 1.10 true
	// false
}

func ExampleManifest_Agents() {
	m, err := manifest.Parse([]byte(doc))
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range m.Agents() {
		fmt.Println(a.Pointer, a.Runtime, a.Endpoint)
	}
	// Output: /agent external:muse http://127.0.0.1:8787/lowkey/turn
}

func ExampleManifest_ID() {
	m, err := manifest.Parse([]byte(doc))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.ID())
	// Output: muse
}

func ExampleManifest_Bytes() {
	m, err := manifest.Parse([]byte(doc))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(m.Bytes()) == doc)
	// Output: true
}

func ExampleManifest_Write() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()

	m, err := manifest.New("muse", "http://127.0.0.1:8787/lowkey/turn")
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(dir, "manifest.json")
	if err := m.Write(path); err != nil {
		log.Fatal(err)
	}
	again, err := manifest.Load(path)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(again.ID())
	// Output: muse
}
