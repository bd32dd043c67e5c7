// Package tidegate lets calls that a service makes keep the rank and the deadline of the request they are made
// for.
//
// One file without dependencies: copy it. It takes overload-context, traceparent and x-request-id of the
// request that is being served, and puts them on the calls that are made with its context. Who traces with
// OpenTelemetry needs none of this behind a sidecar: traceparent is enough.
//
//	http.ListenAndServe(addr, tidegate.Handler(mux))
//	client := &http.Client{Transport: tidegate.Transport{}}
//	request, _ := http.NewRequestWithContext(r.Context(), "GET", url, nil)
package tidegate

import (
	"context"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const field = "Overload-Context"

// longest is what a gate reads; longer contexts are nobody's.
const longest = 1024

var copied = []string{"Traceparent", "Tracestate", "X-Request-Id"}

// member is one of a dictionary of RFC 9651: a key and a string, an inner list, or anything else; parameters say
// nothing and are dropped.
var member = regexp.MustCompile(
	`^\s*([a-z*][a-z0-9_.*-]*)(=(?:%?"(?:[^"\\]|\\.)*"|\([^)]*\)|[^,;\s"(]+))?(?:;[^,"]*)?\s*(?:,|$)`)

var number = regexp.MustCompile(`^=\d{1,15}(\.\d{1,3})?$`)

type key struct{}

type request struct {
	fields http.Header
	since  time.Time
}

// Handler serves each request as itself.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(Inside(r.Context(), r.Header)))
	})
}

// Inside is a context whose calls are made for the request with these headers.
func Inside(ctx context.Context, headers http.Header) context.Context {
	fields := http.Header{}
	for _, name := range append([]string{field}, copied...) {
		if value := headers.Get(name); value != "" {
			fields.Set(name, value)
		}
	}
	return context.WithValue(ctx, key{}, request{fields, time.Now()})
}

// Headers is what a call sends that is made now; nothing outside of any request.
func Headers(ctx context.Context) http.Header {
	headers := http.Header{}
	of, known := ctx.Value(key{}).(request)
	if !known {
		return headers
	}
	for _, name := range copied {
		if value := of.fields.Get(name); value != "" {
			headers.Set(name, value)
		}
	}
	if passed := PassOn(of.fields.Get(field), time.Since(of.since)); passed != "" {
		headers.Set(field, passed)
	}
	return headers
}

// Transport sends calls with what they should carry.
type Transport struct {
	// Base sends them; http.DefaultTransport if it is nil.
	Base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	// A transport must not change the request it is given.
	r = r.Clone(r.Context())
	for name, values := range Headers(r.Context()) {
		if r.Header.Get(name) == "" {
			r.Header[name] = values
		}
	}
	return base.RoundTrip(r)
}

// PassOn is a context as it travels on, so long after it was received; empty if it is malformed.
func PassOn(field string, spent time.Duration) string {
	if len(field) > longest {
		return ""
	}
	var members []string
	for rest := field; rest != ""; {
		found := member.FindStringSubmatch(rest)
		if found == nil {
			return ""
		}
		rest = rest[len(found[0]):]
		name, value := found[1], strings.TrimSpace(found[2])
		switch name {
		// The attempt, the process that calls, what waits at it and what it shed are the caller's own.
		case "a", "c", "q", "s":
			continue
		case "d":
			if !number.MatchString(value) {
				return ""
			}
			left, _ := strconv.ParseFloat(value[1:], 64)
			left = math.Max(0, left-float64(spent.Microseconds())/1000)
			value = "=" + strconv.FormatFloat(math.Floor(left*1000)/1000, 'f', -1, 64)
		}
		members = append(members, name+value)
	}
	return strings.Join(members, ", ")
}
