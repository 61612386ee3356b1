import assert from 'node:assert/strict'
import { createServer, type RequestListener } from 'node:http'
import { test, type TestContext } from 'node:test'
import { call, post } from '../support/http.ts'
import { embed, startService } from '../support/service.ts'
import { listening } from '../support/serving.ts'
import { headerLines } from '../support/verdict.ts'

/* The Link of a page, as old and new readers of relative references resolve it. */

type Resolve = (base: string, reference: string) => string

/** Replaces what follows the last slash of the base, which both RFCs do with a relative path. */
const merged: Resolve = (base, reference) => base.replace(/[^/]*(?:\?.*)?$/, '') + reference

const RESOLVERS: Readonly<Record<string, Resolve>> = {
  // §5.2, steps 5 to 7: a query alone is a path too, which is empty. So does java.net.URI.
  'RFC 2396': (base, reference) => {
    return reference.startsWith('/') ? reference : merged(base, reference)
  },
  // §5.2.2: a query alone keeps the whole path of the base.
  'RFC 3986': (base, reference) => {
    if (reference.startsWith('/')) return reference
    return reference.startsWith('?')
      ? base.replace(/\?.*$/, '') + reference
      : merged(base, reference)
  },
  'URL of browsers': (base, reference) => {
    const { pathname, search } = new URL(reference, `http://plants.test${base}`)
    return pathname + search
  },
}

/** Where a reader finds the plants, and the port there. */
type Place = (t: TestContext) => Promise<readonly [port: number, plants: string]>

const PLACES: Readonly<Record<string, Place>> = {
  'the service': async (t) => [(await startService(t)).port, '/plants'],
  'a handler that is mounted below a prefix': async (t) => {
    const service = await embed(t)
    await service.open()
    const mount: RequestListener = (req, res) => {
      req.url = (req.url ?? '').replace('/api', '')
      service.handler(req, res)
    }
    return [await listening(t, createServer(mount)), '/api/plants']
  },
}

for (const [where, place] of Object.entries(PLACES))
  test(`next page: every kind of resolver finds it, at ${where}`, async (t) => {
    const [port, plants] = await place(t)
    const names = ['Fern', 'Moss', 'Oak', 'Yew']
    const pages = names.map((name) => [{ name }])
    for (const [id, name] of names.entries())
      assert.equal((await post(port, { id, name }, { path: plants })).status, 200)
    for (const [kind, resolve] of Object.entries(RESOLVERS)) {
      const found: unknown[] = []
      for (let path: string | undefined = `${plants}?limit=1&x=/y`; path !== undefined; ) {
        const base: string = path
        const reply = await call(port, { path: base })
        assert.equal(reply.status, 200, `${kind}: ${base}`)
        found.push(reply.json())
        const [, next] = /^<(.*)>; rel="next"$/.exec(headerLines(reply, 'link').join()) ?? []
        path = next === undefined ? undefined : resolve(base, next)
      }
      assert.deepEqual(found, pages, kind)
    }
  })
