package lowkey

import (
	"github.com/backline-dev/backline/schema/internal/scan"
)

// Parse reads a request from a body. It refuses what [schema.Check] refuses (a key twice, invalid
// UTF-8, nesting over 64, anything after the value) and what the published schema refuses; an escaped
// surrogate without its other half becomes U+FFFD. The error is an [*Error], and then what r holds
// means nothing. A version other than 1 is told before any other wrong field.
//
// Strings of r share memory with body, which must not be changed as long as any of them is in use; one
// that is kept keeps the whole body alive, so clone what is kept. The memory of r.TranscriptWindow is
// used again: see [Request.Reset]. Everything else in r is overwritten. Parse may be called from
// several goroutines, each with a request of its own.
func Parse(body []byte, r *Request) error {
	window := r.TranscriptWindow[:0]
	*r = Request{}
	d := decoder{doc: body, i: scan.Space(body, 0)}
	ok := uint64(len(body)) <= scan.MaxLen && d.request(r, window)
	d.release()
	if !ok {
		return refuse(body, &d)
	}
	return nil
}

// request reads the whole body.
func (d *decoder) request(r *Request, window []WindowEntry) bool {
	const (
		version = 1 << iota
		plugin
		session
		turn
		transcript
		limits
	)
	at := d.i
	if !d.open() {
		return false
	}
	seen := 0
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		field := 0
		switch name {
		case "protocolVersion":
			field, ok = version, d.version(&r.ProtocolVersion)
		case "pluginId":
			field, ok = plugin, d.id(&r.PluginID)
		case "sessionHandle":
			field, ok = session, d.session(&r.SessionHandle)
		case "turn":
			field, ok = turn, d.turn(&r.Turn)
		case "transcriptWindow":
			field, ok = transcript, d.window(&r.TranscriptWindow, window)
		case "limits":
			field, ok = limits, d.limits(&r.Limits)
		default:
			ok = d.unknown(0, 1)
		}
		if !ok || seen&field != 0 {
			return false
		}
		seen |= field
	}
	switch missing := ^seen; {
	case missing&version != 0:
		return d.lacks(at, "protocolVersion", theOnly)
	case missing&plugin != 0:
		return d.lacks(at, "pluginId", anID)
	case missing&session != 0:
		return d.lacks(at, "sessionHandle", anObject)
	case missing&turn != 0:
		return d.lacks(at, "turn", anObject)
	case missing&transcript != 0:
		return d.lacks(at, "transcriptWindow", anArray)
	case missing&limits != 0:
		return d.lacks(at, "limits", anObject)
	}
	return d.end()
}

func (d *decoder) session(h *SessionHandle) bool {
	const (
		id = 1 << iota
		path
		session
		agent
	)
	at := d.i
	if !d.open() {
		return false
	}
	d.fresh[1] = true
	seen := 0
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		field := 0
		switch name {
		case "id":
			field, ok = id, d.id(&h.ID)
		case "projectPath":
			field, ok = path, d.text(&h.ProjectPath, aString)
		case "sessionId":
			field, ok = session, d.id(&h.SessionID)
		case "agentId":
			field, ok = agent, d.id(&h.AgentID)
		default:
			ok = d.unknown(1, 2)
		}
		if !ok || seen&field != 0 {
			return false
		}
		seen |= field
	}
	switch missing := ^seen; {
	case missing&id != 0:
		return d.lacks(at, "id", anID)
	case missing&path != 0:
		return d.lacks(at, "projectPath", aString)
	case missing&session != 0:
		return d.lacks(at, "sessionId", anID)
	case missing&agent != 0:
		return d.lacks(at, "agentId", anID)
	}
	return true
}

func (d *decoder) turn(t *Turn) bool {
	const (
		id = 1 << iota
		message
		headless
		user
	)
	at := d.i
	if !d.open() {
		return false
	}
	d.fresh[1] = true
	seen := 0
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		field := 0
		switch name {
		case "turnId":
			field, ok = id, d.id(&t.TurnID)
		case "message":
			field, ok = message, d.text(&t.Message, aString)
		case "headless":
			field, ok = headless, d.boolean(&t.Headless)
		case "userName":
			field, ok = user, d.text(&t.UserName, aString)
		default:
			ok = d.unknown(1, 2)
		}
		if !ok || seen&field != 0 {
			return false
		}
		seen |= field
	}
	switch missing := ^seen; {
	case missing&id != 0:
		return d.lacks(at, "turnId", anID)
	case missing&message != 0:
		return d.lacks(at, "message", aString)
	case missing&headless != 0:
		return d.lacks(at, "headless", aBoolean)
	}
	return true
}

// window reads the transcript window into the memory of list.
func (d *decoder) window(to *[]WindowEntry, list []WindowEntry) bool {
	doc := d.doc
	if d.i >= len(doc) || doc[d.i] != '[' {
		return d.wrong(anArray)
	}
	d.i = scan.Space(doc, d.i+1)
	if d.i < len(doc) && doc[d.i] == ']' {
		d.i++
		if list == nil {
			list = []WindowEntry{} // as a request is marshalled: never null
		}
		*to = list
		return true
	}
	if cap(list) == 0 {
		// No entry is shorter than this. Where there are many, append finds the right size.
		const shortest = len(`{"role":"user","content":""},`)
		list = make([]WindowEntry, 0, min(64, (len(doc)-d.i)/shortest+1))
	}
	for {
		list = append(list, WindowEntry{})
		if !d.entry(&list[len(list)-1]) {
			return false
		}
		d.i = scan.Space(doc, d.i)
		if d.i >= len(doc) {
			return false
		}
		switch doc[d.i] {
		case ',':
			d.i = scan.Space(doc, d.i+1)
		case ']':
			d.i++
			*to = list
			return true
		default:
			return false
		}
	}
}

func (d *decoder) entry(e *WindowEntry) bool {
	const (
		role = 1 << iota
		content
		when
		agent
		agentName
		turn
	)
	at := d.i
	if !d.open() {
		return false
	}
	d.fresh[1] = true
	seen := 0
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		field := 0
		switch name {
		case "role":
			field, ok = role, d.role(&e.Role)
		case "content":
			field, ok = content, d.text(&e.Content, aString)
		case "timestamp":
			field, ok = when, d.time(&e.Timestamp)
		case "agentId":
			field, ok = agent, d.text(&e.AgentID, aString)
		case "agentName":
			field, ok = agentName, d.text(&e.AgentName, aString)
		case "turnId":
			field, ok = turn, d.text(&e.TurnID, aString)
		default:
			ok = d.unknown(1, 3)
		}
		if !ok || seen&field != 0 {
			return false
		}
		seen |= field
	}
	switch missing := ^seen; {
	case missing&role != 0:
		return d.lacks(at, "role", theRoles)
	case missing&content != 0:
		return d.lacks(at, "content", aString)
	}
	return true
}

func (d *decoder) role(r *Role) bool {
	i := d.i
	var s string
	if !d.text(&s, theRoles) {
		return false
	}
	switch Role(s) {
	case RoleUser:
		*r = RoleUser
	case RoleAgent:
		*r = RoleAgent
	case RoleSystem:
		*r = RoleSystem
	default:
		d.i = i
		return d.wrong(theRoles)
	}
	return true
}

func (d *decoder) limits(l *Limits) bool {
	at := d.i
	if !d.open() {
		return false
	}
	d.fresh[1] = true
	seen := false
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		if name == "transcriptWindowMessages" {
			if seen {
				return false
			}
			seen = true
			ok = d.count(&l.TranscriptWindowMessages, aCount)
		} else {
			ok = d.unknown(1, 2)
		}
		if !ok {
			return false
		}
	}
	if !seen {
		return d.lacks(at, "transcriptWindowMessages", aCount)
	}
	return true
}
