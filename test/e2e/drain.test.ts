import assert from 'node:assert/strict'
import { Agent } from 'node:http'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { call } from '../support/http.ts'
import { freePort } from '../support/ports.ts'
import { type ServerProcess, startProcess } from '../support/process.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { head, Wire } from '../support/wire.ts'

/** `make drain` sets both numbers. */
const { PLANTS_TEST_RESTARTS: restarts, PLANTS_TEST_REQUESTS: requests } = process.env
const RESTARTS = Number(restarts ?? 2)
const REQUESTS = Number(requests ?? 1000)
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
interface Instance {
  readonly directory: string
  /** Names of the plants whose create it answered with 200. */
  readonly acknowledged: Set<string>
  process: ServerProcess
  /** When readiness was first seen as draining. */
  drainsSinceMs: number
  /** When it was sent SIGTERM. */
  signalledAtMs: number
}

const NOT_DRAINING = { drainsSinceMs: Infinity, signalledAtMs: Infinity }

function start(t: TestContext, directory: string, port: number): Promise<ServerProcess> {
  return startProcess(t, directory, {
    PLANTS_LISTEN: `127.0.0.1:${port}`,
    PLANTS_DRAIN_DELAY: String(DRAIN_DELAY_SECONDS),
    PLANTS_SHUTDOWN_TIMEOUT: '120',
  })
}

/** Sends one request with one kind of client. */
type Send = (port: number, body: string | undefined) => Promise<Answered>

const TOKEN = token('alice', { exp: Math.floor(Date.now() / 1000) + 3600 })
const HEADERS = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' }
const PATH = '/plants?limit=1'
const methodOf = (body: string | undefined): string => (body === undefined ? 'GET' : 'POST')

function agentClient(t: TestContext): Send {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  t.after(() => agent.destroy())
  return async (port, body = '') => {
    const method = methodOf(body || undefined)
    const options = { method, path: PATH, headers: HEADERS, body, agent }
    const { status, headers, text } = await call(port, options)
    return { status, closes: headers['connection'] === 'close', text }
  }
}

const fetchClient = (): Send => async (port, body) => {
  const url = `http://127.0.0.1:${port}${PATH}`
  const init = { method: methodOf(body), headers: HEADERS, ...(body === undefined ? {} : { body }) }
  const response = await fetch(url, init)
  const closes = response.headers.get('connection') === 'close'
  return { status: response.status, closes, text: await response.text() }
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

/** Clients under way: each uses one instance until it says `Connection: close`, then the other. */
class Load {
  readonly failures: string[] = []
  answered = 0
  closes = 0
  readonly #clients: readonly Promise<void>[]
  #isRunning = true
  #nextId = 0

  constructor(instances: readonly [Instance, Instance], clients: readonly Send[]) {
    this.#clients = clients.map((send, at) => this.#run(instances, send, at))
  }

  async stop(): Promise<void> {
    this.#isRunning = false
    await Promise.all(this.#clients)
  }

  async #run(instances: readonly [Instance, Instance], send: Send, first: number): Promise<void> {
    for (let at = first; this.#isRunning; ) {
      if (first % 4 === 3) await sleep(PAUSE_MS)
      if (await this.#ask(send, instances[at % 2 === 0 ? 0 : 1])) at += 1
    }
  }

  /** Sends one request; true if the client must go to the other instance. */
  async #ask(send: Send, instance: Instance): Promise<boolean> {
    const id = this.#nextId++
    const plant = { name: `plant ${id}` }
    const body = id % 2 === 0 ? JSON.stringify({ id, ...plant }) : undefined
    const sentMs = performance.now()
    try {
      const { status, closes, text } = await send(instance.process.port, body)
      this.answered += 1
      const isRight =
        body === undefined ? Array.isArray(JSON.parse(text)) : text === JSON.stringify(plant)
      if (status !== 200 || !isRight) this.failures.push(`${status} ${text}`)
      else if (body !== undefined) instance.acknowledged.add(plant.name)
      if (sentMs > instance.drainsSinceMs && !closes)
        this.failures.push('the connection was kept after the signal')
      if (closes) this.closes += 1
      return closes
    } catch (error) {
      if (!isRefused(error, sentMs, instance))
        this.failures.push(String(error instanceof TypeError ? error.cause : error))
      await sleep(5)
      return true
    }
  }
}

/** Checks until the instance ends that it is alive and not ready. */
async function probeUntilGone(instance: Instance): Promise<void> {
  const ask = (path: string) => call(instance.process.adminPort, { path, token: undefined })
  for (let probes = 0; ; await sleep(50)) {
    const answered = await Promise.all([ask('/readyz'), ask('/livez')]).catch(() => undefined)
    if (!answered) return assert.ok(probes > 0, 'it drains')
    const [ready, live] = answered
    if (ready.status === 200 && probes === 0) continue
    if (probes++ === 0) instance.drainsSinceMs = performance.now()
    const isDraining = ready.text.includes('"service":"draining"')
    assert.deepEqual([ready.status, isDraining, live.status], [503, true, 200])
  }
}

/** Stops and starts an instance that has unused and idle connections. */
async function restart(t: TestContext, instance: Instance): Promise<void> {
  const { port } = instance.process
  const connected = () => Promise.all(Array.from({ length: IDLE }, () => Wire.to(port)))
  const [unused, idle] = [await connected(), await connected()]
  await Promise.all(idle.map((wire) => wire.write(head('GET', PATH)).answers(1)))
  instance.signalledAtMs = performance.now()
  const exited = instance.process.kill('SIGTERM')
  await probeUntilGone(instance)
  assert.equal(await exited, 0)
  for (const wire of unused) assert.equal((await wire.allAnswers()).length, 0)
  for (const wire of idle) assert.equal((await wire.allAnswers()).length, 1)
  // The deadline was not reached, and nothing else failed.
  assert.doesNotMatch(instance.process.output(), /"level":"error"/)
  instance.process = await start(t, instance.directory, port)
  Object.assign(instance, NOT_DRAINING)
}

async function assertNothingLost({ process: { port }, acknowledged }: Instance): Promise<void> {
  // The documented form of a list.
  const plants = (await call(port, { token: TOKEN })).json() as readonly { readonly name: string }[]
  const listed = new Set(plants.map(({ name }) => name))
  const lost = [...acknowledged].filter((name) => !listed.has(name))
  assert.deepEqual(lost, [], 'acknowledged plants are lost')
}

const NAME = `drain: no request fails in ${RESTARTS} restarts of two instances under load`

test(NAME, { skip: requests === undefined && LONG }, async (t) => {
  const root = await temporaryDirectory()
  const starting = async (name: string): Promise<Instance> => {
    const directory = `${root}/${name}`
    // Not port 0: a client's connection could take such a port while its instance restarts.
    const process = await start(t, directory, await freePort())
    return { directory, process, acknowledged: new Set(), ...NOT_DRAINING }
  }
  const instances = [await starting('a'), await starting('b')] as const
  const load = new Load(instances, [
    ...Array.from({ length: AGENT_CLIENTS }, () => agentClient(t)),
    ...Array.from({ length: FETCH_CLIENTS }, fetchClient),
  ])
  for (let at = 1; at <= RESTARTS; at++) {
    while (load.answered < (REQUESTS * at) / RESTARTS) await sleep(20)
    const instance = instances[at % 2 === 0 ? 0 : 1]
    await restart(t, instance)
    await assertNothingLost(instance)
  }
  await load.stop()
  assert.deepEqual(load.failures, [])
  assert.ok(load.closes >= RESTARTS, 'the stopped instances had clients')
  const told = `${load.answered} requests answered, 0 failed, ${load.closes} told to leave`
  t.diagnostic(`${RESTARTS} restarts, ${told}`)
})
