// Package wirehttp is the HTTP under the protocols: what they share between net/http and the parts that are
// their own. A request's body is read whole within its limits ([Body]); a request that is declined is told
// so in one way, in whatever words its protocol has ([Refusal], [Answer]); and a turn's log writes to a
// connection whose deadlines, flushes and ends are looked after here ([Streams], [Conn]).
//
// A handler's way through it:
//
//	body.Bound(w, r)              the first thing of all
//	refusal.Unread(r)             what is refused before its body is read
//	doc, refusal := body.Read(w, r)
//	conn := streams.Open(w, r)    then the turn is served to conn
//
// It stands any ResponseWriter that foreign middleware puts around net/http's: what one cannot do is left
// out, and a panic of one does not reach a goroutine that has nobody to recover it.
package wirehttp
