package keiki_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	wire "github.com/backline-dev/backline/schema/keiki"
)

// plainTurn is a turn as one would write it for encoding/json.
type plainTurn struct {
	Type           string          `json:"type"`
	Version        int             `json:"version"`
	TurnID         string          `json:"turnId"`
	AgentID        string          `json:"agentId"`
	ConversationID string          `json:"conversationId"`
	Channel        json.RawMessage `json:"channel"`
	Messages       []struct {
		Text      string `json:"text"`
		MessageID string `json:"messageId"`
		Silent    bool   `json:"silent"`
		Screening *struct {
			Flagged bool `json:"flagged"`
		} `json:"screening"`
	} `json:"messages"`
	History []struct {
		Role string `json:"role"`
		Text string `json:"text"`
	} `json:"history"`
	Context      json.RawMessage `json:"context"`
	Instructions string          `json:"instructions"`
	HeldBack     bool            `json:"heldBack"`
	Silent       bool            `json:"silent"`
	QuietLoop    bool            `json:"quietLoop"`
	Deadline     json.RawMessage `json:"deadline"`
	Keiki        struct {
		APIBase string `json:"apiBase"`
		TurnURL string `json:"turnUrl"`
		MCPURL  string `json:"mcpUrl"`
	} `json:"keiki"`
}

const prose = "The quick brown fox jumps over the lazy dog, and then it sits down to think about it. "

// bodies are turns of several sizes, by their names.
func bodies() []struct {
	name string
	body []byte
} {
	turn := func(entries int, text, context string) []byte {
		var history []string
		for i := range entries {
			history = append(history, fmt.Sprintf(`{"role":"%s","text":%q}`, []string{"user", "assistant"}[i%2], text))
		}
		body := strings.Replace(turnBody, `"history":[]`, `"history":[`+strings.Join(history, ",")+`]`, 1)
		return []byte(strings.Replace(body, `"context":{}`, `"context":`+context, 1))
	}
	return []struct {
		name string
		body []byte
	}{
		{"400B", turn(0, "", "{}")},
		{"4KB", turn(20, prose+prose, `{"order":{"id":9007199254740993,"items":[1,2,3]},"name":"Ada"}`)},
		{"4KB-escapes", turn(20, prose+"\n\""+prose+"\"", `{"order":{"id":9007199254740993,"items":[1,2,3]},"name":"Ada"}`)},
		{"200KB-history", turn(40, strings.Repeat(prose, 57), "{}")},
		{"200KB-context", turn(0, "", `{"rows":[`+strings.TrimSuffix(strings.Repeat(`{"sku":"A-100","count":12,"price":1.10,"tags":["a","b"]},`, 3500), ",")+`]}`)},
	}
}

func BenchmarkParseRequest(b *testing.B) {
	for _, bb := range bodies() {
		run := func(name string, read func() error) {
			b.Run(bb.name+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(bb.body)))
				b.ReportAllocs()
				for b.Loop() {
					if err := read(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		run("ParseRequest", func() error {
			_, err := wire.ParseRequest(bb.body)
			return err
		})
		run("AgentID", func() error {
			wire.AgentID(bb.body)
			return nil
		})
		run("encoding-json", func() error {
			var t plainTurn
			return json.Unmarshal(bb.body, &t)
		})
	}
}
