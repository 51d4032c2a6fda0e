package lowkey_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"

	wire "github.com/backline-dev/backline/schema/lowkey"
)

// request is a request with a window of so many entries with so much content each.
func request(entries int, content string) wire.Request {
	r := wire.Request{
		ProtocolVersion: wire.ProtocolVersion,
		PluginID:        "muse",
		SessionHandle:   wire.SessionHandle{ID: "session-1:muse", ProjectPath: "/srv/projects/backline", SessionID: "session-1", AgentID: "muse"},
		Turn:            wire.Turn{TurnID: "turn-41", Message: "And what do you make of it?", UserName: "alvin"},
		Limits:          wire.Limits{TranscriptWindowMessages: 40},
	}
	for i := range entries {
		e := wire.WindowEntry{Role: wire.RoleUser, Content: content, Timestamp: wire.TimestampOf(float64(1719000000000 + i*1000)), TurnID: fmt.Sprintf("turn-%d", i/2)}
		if i%2 == 1 {
			e.Role, e.AgentID, e.AgentName = wire.RoleAgent, "muse", "Muse"
		}
		r.TranscriptWindow = append(r.TranscriptWindow, e)
	}
	return r
}

const prose = "The quick brown fox jumps over the lazy dog, and then it sits down to think about it. "

func bodies(b *testing.B) []struct {
	name string
	body []byte
} {
	encode := func(r wire.Request) []byte {
		body, err := json.Marshal(r)
		if err != nil {
			b.Fatal(err)
		}
		return body
	}
	return []struct {
		name string
		body []byte
	}{
		{"8KB", encode(request(40, prose[:75]))},
		{"8KB-escapes", encode(request(40, prose[:60]+"\n\"quoted\""))},
		{"200KB", encode(request(40, strings.Repeat(prose, 57)))},
		{"200KB-lines", encode(request(40, strings.Repeat(prose+"\n", 56)))},
		{"200KB-cjk", encode(request(40, strings.Repeat("敏捷的棕色狐狸跳过了懒狗。", 125)))},
	}
}

func BenchmarkParse(b *testing.B) {
	for _, bb := range bodies(b) {
		b.Run(bb.name, func(b *testing.B) {
			b.Run("Parse", func(b *testing.B) {
				b.SetBytes(int64(len(bb.body)))
				b.ReportAllocs()
				var r wire.Request
				for b.Loop() {
					if err := wire.Parse(bb.body, &r); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("Parse-fresh", func(b *testing.B) { // no pooled request
				b.SetBytes(int64(len(bb.body)))
				b.ReportAllocs()
				for b.Loop() {
					var r wire.Request
					if err := wire.Parse(bb.body, &r); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("encoding-json", func(b *testing.B) {
				b.SetBytes(int64(len(bb.body)))
				b.ReportAllocs()
				for b.Loop() {
					var r wire.Request
					if err := json.Unmarshal(bb.body, &r); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("go-json-experiment", func(b *testing.B) {
				b.SetBytes(int64(len(bb.body)))
				b.ReportAllocs()
				for b.Loop() {
					var r wire.Request
					if err := jsonv2.Unmarshal(bb.body, &r); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

func BenchmarkExplain(b *testing.B) {
	r := request(40, prose[:75])
	r.TranscriptWindow[39].Role = "admin"
	body, err := json.Marshal(r)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(wire.Explain(body)) != 1 {
			b.Fatal("not one violation")
		}
	}
}
