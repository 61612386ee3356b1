import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type RequestListener } from 'node:http'
import type { Server, ServerResponse } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import { duplexPair, PassThrough } from 'node:stream'
import { describe, test, type TestContext } from 'node:test'
import { setImmediate as yieldTick, setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../dist/errors.js'
import { ALICE, type Bare, type BareOptions, listOf, startBare } from '../support/bare.ts'
import { AUTHORITY, CERTIFICATE, KEY } from '../support/etcd-pem.ts'
import { LONG } from '../support/scale.ts'
import { listening } from '../support/serving.ts'
import { until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { answersTo, answersUntilEnd, CHUNKED, chunks, firstAnswer } from '../support/wire.ts'
import { head, postBytes, posting, type Target, Wire } from '../support/wire.ts'

/*
 * The handler in another application's server, which may touch every request and response, before
 * and while the handler does. An unhandled rejection or exception fails a test by itself.
 */

/** What an application does with a request; it calls `handle` to pass it on. */
type Application = (req: IncomingMessage, res: ServerResponse, handle: RequestListener) => void

interface Mounted extends Bare {
  readonly server: Server
  readonly target: Target
}

type Mount = (t: TestContext, application?: Application) => Promise<Mounted>

const SERVERS = {
  http: (listener: RequestListener) => createServer(listener),
  https: (listener: RequestListener) =>
    createSecureServer({ key: KEY, cert: CERTIFICATE }, listener),
} as const

/** The handler in a server of the test's own, by default as its only listener. */
function mountIn(scheme: keyof typeof SERVERS, options: BareOptions): Mount {
  return async (t, application) => {
    const bare = await startBare(t, options)
    const { handler } = bare.adapter
    const server = SERVERS[scheme](
      application ? (req, res) => application(req, res, handler) : handler,
    )
    const port = await listening(t, server)
    return { ...bare, server, target: scheme === 'http' ? port : { port, ca: AUTHORITY } }
  }
}

/** Like a body parser: reads the whole body, then passes the request on. */
const parseFirst: Application = (req, res, handle) => {
  req.on('data', () => {}).once('end', () => setImmediate(() => handle(req, res)))
}

const TIMED_OUT = 'timed out by the application'

/** Answers like a timeout middleware. */
function timeOut(res: ServerResponse): void {
  res.writeHead(504, { 'content-length': TIMED_OUT.length }).end(TIMED_OUT)
}

const GET = head('GET', '/plants')
const FERN_JSON = '{"id":1,"name":"Fern"}'
const FERN = postBytes(FERN_JSON)
const READ_BEFORE = 'the body was read before the handler: mount it before body parsers'

const late = { authenticate: async () => (await yieldTick(), ALICE) }
for (const [title, mount, skip] of [
  ['node:http', mountIn('http', {}), false],
  ['node:http, tokens verified later', mountIn('http', late), false],
  ['node:https', mountIn('https', late), LONG],
] as const) {
  describe(`mounted in ${title}`, { concurrency: true, skip }, () => everyCase(mount))
  describe(`mounted in ${title}: 100 Continue`, () => everyContinue(mount))
}

function everyCase(mount: Mount): void {
  const first: Readonly<Record<string, Application>> = {
    'before the handler': (req, res, handle) => {
      timeOut(res)
      handle(req, res)
    },
    'while the handler waits for the body': (req, res, handle) => {
      handle(req, res)
      if (!res.headersSent) timeOut(res)
    },
    'once the body has come': (req, res, handle) => {
      handle(req, res)
      req.once('end', () => timeOut(res))
    },
  }
  for (const [when, application] of Object.entries(first))
    test(`an answer of the application ${when} is the only one`, async (t) => {
      const { target } = await mount(t, (req, res, handle) =>
        req.method === 'POST' ? application(req, res, handle) : handle(req, res),
      )
      const [answer, next] = await answersTo(target, FERN + GET, 2)
      assert.deepEqual([answer?.status, answer?.body, next?.status], [504, TIMED_OUT, 200])
    })

  test('an answer that the application has begun is left to it', async (t) => {
    const { target } = await mount(t, (req, res, handle) => {
      if (req.method === 'POST') res.writeHead(202)
      handle(req, res)
      if (req.method === 'POST') setImmediate(() => res.end('"later"'))
    })
    const [answer, next] = await answersTo(target, FERN + GET, 2)
    assert.deepEqual([answer?.status, answer?.body, next?.status], [202, '"later"', 200])
  })

  test('an application that ends a list early breaks no other request', async (t) => {
    let ended = 0
    const { target } = await mount(t, (req, res, handle) => {
      handle(req, res)
      if (req.url !== '/plants?limit=1000000') return
      const end = (): void => {
        if (!res.headersSent) return void setImmediate(end)
        res.end('application')
        res.end('again')
        ended++
      }
      end()
    })
    const posts = [0, 1, 2].map((id) => postBytes({ id, name: 'x'.repeat(900_000) }))
    for (const each of posts) assert.equal(verdict(await firstAnswer(target, each)), 200)
    for (let round = 0; round < 3; round++) {
      const wire = (await Wire.to(target)).write(head('GET', '/plants?limit=1000000'))
      await until('it is ended', () => ended > round)
      await sleep(20)
      wire.destroy()
    }
    assert.equal(verdict(await firstAnswer(target, GET)), 200)
  })

  for (const early of [true, false])
    test(`a response that is destroyed breaks no other request; early: ${early}`, async (t) => {
      const { target } = await mount(t, (req, res, handle) => {
        if (early && req.method === 'POST') res.destroy()
        handle(req, res)
        if (!early && req.method === 'POST') res.destroy()
      })
      assert.deepEqual(await answersUntilEnd(target, FERN), [])
      assert.equal(verdict(await firstAnswer(target, GET)), 200)
    })

  const posts = {
    'with a length': FERN,
    'in chunks': posting([CHUNKED]) + chunks(FERN_JSON),
    'of many reads': postBytes({ id: 1, name: 'x'.repeat(200_000) }),
  }
  for (const [what, post] of Object.entries(posts))
    test(`a body ${what} that a parser has read gets 500 at once, and a log line`, async (t) => {
      const { target, failures } = await mount(t, (req, res, handle) =>
        (req.method === 'POST' ? parseFirst : handle)(req, res, handle),
      )
      const answers = await answersTo(target, post + GET, 2)
      assert.deepEqual(answers.map(verdict), ['internal', 200])
      assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), ['keep-alive'])
      assert.deepEqual(failures.map(reasonOf), [READ_BEFORE])
    })

  for (const [line, body] of [
    ['Content-Length: 2', '{}'],
    ['Content-Length: 100000', ' '.repeat(100_000)],
    [CHUNKED, '0\r\n\r\n'],
  ] as const)
    test(`a body that was read does not delay a refusal; ${line}`, async (t) => {
      const { target } = await mount(t, parseFirst)
      const post = head('POST', '/plants', { token: undefined, lines: [line] }) + body
      const answers = await answersTo(target, post + head('OPTIONS', '/plants'), 2)
      assert.deepEqual(answers.map(verdict), ['tokenMissing', 204])
    })

  const decoding: Readonly<Record<string, Application>> = {
    'sets an encoding for': (req, res, handle) => handle(req.setEncoding('latin1'), res),
    'listens for the parts of': (req, res, handle) =>
      handle(
        req.on('readable', () => {}),
        res,
      ),
  }
  for (const [what, application] of Object.entries(decoding))
    test(`a body that the application ${what} gets 500`, async (t) => {
      const { target, failures } = await mount(t, application)
      assert.equal(verdict(await firstAnswer(target, FERN)), 'internal')
      assert.deepEqual(failures.map(reasonOf), [READ_BEFORE])
    })

  const harmless: Readonly<Record<string, Application>> = {
    pauses: (req, res, handle) => handle(req.pause(), res),
    copies: (req, res, handle) => {
      req.pipe(new PassThrough(), { end: false })
      handle(req, res)
    },
    counts: (req, res, handle) => {
      handle(req, res)
      req.on('data', () => {})
    },
  }
  for (const [what, application] of Object.entries(harmless))
    test(`a body that the application ${what} is still read`, async (t) => {
      const { target } = await mount(t, application)
      assert.equal(verdict(await firstAnswer(target, FERN)), 200)
    })

  test('the application gets every byte of a body that is too long', async (t) => {
    let counted = 0
    const { target } = await mount(t, (req, res, handle) => {
      handle(req, res)
      req.on('data', (piece: Buffer) => (counted += piece.length))
    })
    const bytes = posting([CHUNKED]) + chunks(' '.repeat(2 ** 20), 'xxxxx')
    assert.deepEqual((await answersUntilEnd(target, bytes)).map(verdict), ['bodyTooLarge'])
    assert.equal(counted, 2 ** 20 + 5)
  })

  test('a socket that is closed before the handler sees it does not delay a stop', async (t) => {
    let [arrived, seen] = [0, 0]
    const { adapter, target } = await mount(t, (req, res, handle) => {
      arrived++
      void once(req.socket, 'close').then(() => {
        handle(req, res)
        seen++
      })
    })
    const wire = await Wire.to(target)
    wire.write(GET)
    // A TLS socket that is destroyed at once may drop it.
    await until('the application has it', () => arrived === 1)
    wire.halfClose().destroy()
    await until('the handler has seen it', () => seen === 1)
    assert.equal(adapter.active, 0)
  })

  test('requests that the application passes on out of order are all answered', async (t) => {
    // As if the first one waited for a session.
    const { target } = await mount(t, (req, res, handle) => {
      if (req.method === 'POST') setTimeout(() => handle(req, res), 50)
      else handle(req, res)
    })
    const answers = await answersTo(target, FERN + GET + head('GET', '/plants?limit=1'), 3)
    assert.deepEqual(answers.map(verdict), [200, 200, 200])
    // Their order is the application's: what the lists show is up to it.
    assert.equal(answers[0]?.body, '{"name":"Fern"}')
  })

  for (const version of ['1.0', '1.1'])
    test(`HTTP/${version} to a server without keep-alive gets whole answers`, async (t) => {
      const { target, server } = await mount(t)
      server.keepAliveTimeout = 1
      server.maxRequestsPerSocket = 1
      const answers = await answersUntilEnd(target, head('GET', '/plants', { version }))
      assert.deepEqual(answers.map(verdict), [200])
    })
}

function everyContinue(mount: Mount): void {
  const asked = posting(['Content-Length: 22', 'Expect: 100-continue'])

  /** The answers to a body that is sent once the client may send it, and to a GET. */
  async function converse(target: Target, begin: string) {
    const wire = await Wire.to(target)
    wire.write(begin)
    await until('it may send', () => wire.text.includes('HTTP/1.1 100 Continue\r\n\r\n'))
    const answers = await wire.write(FERN_JSON + GET).answers(2)
    return answers.map((answer) => [verdict(answer), answer.interim])
  }

  const SENT_ONCE = [
    [200, 1],
    [200, 0],
  ]

  test('is sent once by the server', async (t) => {
    const { target } = await mount(t)
    assert.deepEqual(await converse(target, asked), SENT_ONCE)
  })

  test('is sent once if the application sends it', async (t) => {
    const { server, target } = await mount(t)
    server.on('checkContinue', (req, res) => {
      res.writeContinue()
      server.emit('request', req, res)
    })
    assert.deepEqual(await converse(target, asked), SENT_ONCE)
  })

  test('after it, a refusal keeps the connection', async (t) => {
    const { target } = await mount(t)
    assert.deepEqual(await converse(target, asked.replace(/Authorization: .*\r\n/, '')), [
      ['tokenMissing', 1],
      [200, 0],
    ])
  })
}

test("mounted: the bytes of the application's headers do not depend on the body", async (t) => {
  const { target } = await mountIn('http', {})(t, (req, res, handle) => {
    res.setHeader('X-Name', 'caf\u00e9')
    handle(req, res)
  })
  for (const [id, name] of ['Fern', 'F\u00e9rn', 'Fern'.repeat(2000)].entries()) {
    const wire = await Wire.to(target)
    wire.write(postBytes({ id, name }, { lines: ['Connection: close'] }))
    await until('it is answered', () => wire.text.endsWith('"}'))
    assert.match(wire.text, /^HTTP\/1\.1 200 OK\r\n/)
    assert.match(wire.text, /\r\nX-Name: caf\u00e9\r\n/)
    assert.ok(wire.text.endsWith(Buffer.from(`{"name":"${name}"}`).toString('latin1')))
  }
})

const LISTS = { list: () => listOf(Array(100).fill([{ name: 'x'.repeat(1_000_000) }])) }

for (const scheme of ['http', 'https', 'a stream'] as const)
  test(`mounted in ${scheme}: readers that stall are cut off by a stop, and logged`, async (t) => {
    const isStream = scheme === 'a stream'
    const mount = mountIn(isStream ? 'http' : scheme, { store: LISTS })
    const { adapter, server, target, answered, responses } = await mount(t)
    const clients: { destroy(): void }[] = []
    for (let at = 0; at < 3; at++) {
      const [ours, theirs] = duplexPair()
      if (isStream) server.emit('connection', theirs)
      const client = isStream ? ours : (await Wire.to(target)).socket
      client.pause().write(GET)
      clients.push(client)
    }
    await until('a chunk of each waits', () => responses.held > 3 * 900_000)
    assert.equal(await adapter.drain(50), 3)
    await until('all are cut off', () => adapter.active === 0)
    assert.deepEqual(answered, Array(3).fill('GET 200 aborted'))
    for (const client of clients) client.destroy()
  })
