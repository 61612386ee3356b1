import assert from 'node:assert/strict'
import { Agent, type IncomingHttpHeaders, request } from 'node:http'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { call } from '../support/http.ts'
import { freePort } from '../support/ports.ts'
import { type ServerProcess, startProcess } from '../support/process.ts'
import { temporaryDirectory } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { head, Wire } from '../support/wire.ts'

/** `make drain` sets both numbers. */
const RESTARTS = Number(process.env['PLANTS_TEST_RESTARTS'] ?? 2)
const REQUESTS = Number(process.env['PLANTS_TEST_REQUESTS'] ?? 1000)
const AGENT_CLIENTS = 12
const FETCH_CLIENTS = 4
const DRAIN_DELAY_SECONDS = 1
/** Between two requests of every fourth client. */
const PAUSE_MS = 100
const IDLE = 5

interface Answered {
  readonly status: number
  readonly closes: boolean
  readonly text: string
}

/** One of two instances that share nothing. It keeps its port when it restarts. */
class Instance {
  readonly #t: TestContext
  readonly #directory: string
  /** Names of the plants whose create it answered with 200. */
  readonly acknowledged = new Set<string>()
  process!: ServerProcess
  /** When readiness was first seen as draining. */
  drainsSinceMs = Infinity
  /** When it was sent SIGTERM. */
  signalledAtMs = Infinity

  constructor(t: TestContext, directory: string) {
    this.#t = t
    this.#directory = directory
  }

  async start(port: number): Promise<void> {
    this.process = await startProcess(this.#t, this.#directory, {
      PLANTS_LISTEN: `127.0.0.1:${port}`,
      PLANTS_DRAIN_DELAY: String(DRAIN_DELAY_SECONDS),
      PLANTS_SHUTDOWN_TIMEOUT: '120',
    })
    this.drainsSinceMs = Infinity
    this.signalledAtMs = Infinity
  }
}

/** Sends one request with one kind of client. */
type Send = (port: number, body: string | undefined) => Promise<Answered>

const HEADERS = {
  authorization: `Bearer ${token('alice', { exp: Math.floor(Date.now() / 1000) + 3600 })}`,
  'content-type': 'application/json',
}
const PATH = '/plants?limit=1'

function agentClient(t: TestContext): Send {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  t.after(() => agent.destroy())
  return (port, body) =>
    new Promise((resolve, reject) => {
      const req = request(
        {
          host: '127.0.0.1',
          port,
          path: PATH,
          method: body === undefined ? 'GET' : 'POST',
          agent,
          headers: HEADERS,
        },
        (res) => {
          let text = ''
          res.setEncoding('utf8').on('data', (chunk: string) => (text += chunk))
          const { connection }: IncomingHttpHeaders = res.headers
          res
            .on('error', reject)
            .on('end', () =>
              resolve({ status: res.statusCode ?? 0, closes: connection === 'close', text }),
            )
        },
      )
      req.on('error', reject).end(body)
    })
}

function fetchClient(): Send {
  return async (port, body) => {
    const response = await fetch(
      `http://127.0.0.1:${port}${PATH}`,
      body === undefined ? { headers: HEADERS } : { method: 'POST', headers: HEADERS, body },
    )
    return {
      status: response.status,
      closes: response.headers.get('connection') === 'close',
      text: await response.text(),
    }
  }
}

function codeOf(error: unknown): unknown {
  const cause = error instanceof TypeError ? error.cause : error
  return cause instanceof Error && 'code' in cause ? cause.code : undefined
}

/**
 * True if the connection was refused, or if it was closed while idle (RFC 9112 §9.5): a client that
 * sent no request during the drain delay could not be told to leave.
 */
function isRefused(error: unknown, sentMs: number, { signalledAtMs }: Instance): boolean {
  const code = codeOf(error)
  if (code === 'ECONNREFUSED') return true
  return (
    sentMs > signalledAtMs + DRAIN_DELAY_SECONDS * 1000 &&
    (code === 'ECONNRESET' || code === 'EPIPE' || code === 'UND_ERR_SOCKET')
  )
}

test(`drain: no request fails in ${RESTARTS} restarts of two instances under load`, async (t) => {
  const root = await temporaryDirectory()
  const instances = [new Instance(t, `${root}/a`), new Instance(t, `${root}/b`)] as const
  // Not port 0: a client's connection could take such a port while its instance restarts.
  for (const instance of instances) await instance.start(await freePort())
  const ports = instances.map(({ process: { port } }) => port)
  const failures: string[] = []
  let [answered, closes, refused, running, nextId] = [0, 0, 0, true, 0]

  /** Uses one instance until it says `Connection: close`, then the other. */
  const client = async (send: Send, first: number): Promise<void> => {
    for (let at = first; running; ) {
      if (first % 4 === 3) await sleep(PAUSE_MS)
      const instance = instances[at % 2] ?? instances[0]
      const { port } = instance.process
      const id = nextId++
      const plant = { name: `plant ${id}` }
      const body = id % 2 === 0 ? JSON.stringify({ id, ...plant }) : undefined
      const sentMs = performance.now()
      try {
        const { status, closes: leaves, text } = await send(port, body)
        answered += 1
        const isRight =
          body === undefined ? Array.isArray(JSON.parse(text)) : text === JSON.stringify(plant)
        if (status !== 200 || !isRight) failures.push(`${status} ${text}`)
        else if (body !== undefined) instance.acknowledged.add(plant.name)
        if (sentMs > instance.drainsSinceMs && !leaves)
          failures.push('the connection was kept after the signal')
        if (leaves) closes += 1
        if (leaves) at += 1
      } catch (error) {
        if (isRefused(error, sentMs, instance)) refused += 1
        else failures.push(String(error instanceof TypeError ? error.cause : error))
        at += 1
        await sleep(5)
      }
    }
  }
  const clients = [
    ...Array.from({ length: AGENT_CLIENTS }, () => agentClient(t)),
    ...Array.from({ length: FETCH_CLIENTS }, fetchClient),
  ].map(client)

  let probes = 0
  for (let restart = 1; restart <= RESTARTS; restart++) {
    const instance = instances[restart % 2] ?? instances[0]
    const { port, adminPort } = instance.process
    while (answered < (REQUESTS * restart) / RESTARTS) await sleep(20)
    const idle = await Promise.all(Array.from({ length: 2 * IDLE }, () => Wire.to(port)))
    await Promise.all(idle.slice(IDLE).map((wire) => wire.write(head('GET', PATH)).answers(1)))
    instance.signalledAtMs = performance.now()
    const exited = instance.process.kill('SIGTERM')
    let gone = false
    void exited.then(() => (gone = true))
    // Until it ends, it is alive and not ready.
    for (;;) {
      try {
        const ready = await call(adminPort, { path: '/readyz', token: undefined })
        const live = await call(adminPort, { path: '/livez', token: undefined })
        if (ready.status === 200 && instance.drainsSinceMs === Infinity) continue
        instance.drainsSinceMs = Math.min(instance.drainsSinceMs, performance.now())
        assert.deepEqual(
          [ready.status, ready.text.includes('"service":"draining"'), live.status],
          [503, true, 200],
        )
        probes += 1
      } catch (error) {
        if (error instanceof assert.AssertionError) throw error
        break
      }
      await sleep(20)
    }
    assert.equal(await exited, 0)
    assert.ok(gone)
    for (const wire of idle)
      assert.equal((await wire.allAnswers()).length, idle.indexOf(wire) < IDLE ? 0 : 1)
    // The deadline was not reached, and nothing else failed.
    assert.deepEqual(
      instance.process
        .output()
        .split('\n')
        .filter((line) => line.includes('"level":"error"')),
      [],
    )
    await instance.start(port)
    const listed = new Set(
      (
        JSON.parse((await call(port, { token: token('alice') })).text) as readonly {
          readonly name: string
        }[]
      ).map(({ name }) => name),
    )
    assert.deepEqual(
      [...instance.acknowledged].filter((name) => !listed.has(name)),
      [],
      'acknowledged plants are lost',
    )
  }
  running = false
  await Promise.all(clients)
  assert.deepEqual(
    ports,
    instances.map(({ process: { port } }) => port),
  )
  assert.deepEqual(failures, [])
  assert.ok(closes >= RESTARTS, 'the stopped instances had clients')
  t.diagnostic(
    `${RESTARTS} restarts, ${answered} requests answered, 0 failed, ${closes} told to leave, ` +
      `${refused} refused, ${probes} probes while draining`,
  )
})
