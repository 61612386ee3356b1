import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { generateKeyPairSync, sign } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { call, post } from './support/http.ts'
import { PEM, readPair } from './support/keys.ts'
import { environment } from './support/launch.ts'
import { freePort } from './support/ports.ts'
import { ROOT } from './support/release.ts'
import { type RunningService, startService, temporaryDirectory } from './support/service.ts'
import { serving } from './support/serving.ts'
import { until } from './support/time.ts'
import { AUDIENCE, ISSUER, signToken } from './support/tokens.ts'

const FOLDER = join(ROOT, 'scripts/deploy')
const read = (name: string): string => readFileSync(join(FOLDER, name), 'utf8')

const ALERTS = read('alerts.yaml')
const ALERT_NAMES = [...ALERTS.matchAll(/- alert: (\w+)$/gm)].map(([, name = '']) => name)

interface Panel {
  readonly id: number
  readonly title: string
  readonly gridPos: Readonly<Record<'x' | 'y' | 'w' | 'h', number>>
  readonly targets: readonly { readonly refId: string; readonly expr: string }[]
}

// The project's own file, whose panels have these members; a missing one makes a test fail.
const { panels } = JSON.parse(read('grafana-dashboard.json')) as {
  readonly panels: readonly Panel[]
}
const PANEL_QUERIES = panels.flatMap(({ targets }) =>
  targets.map(({ expr }) =>
    expr.replaceAll('$__rate_interval', '1m').replaceAll('$instance', '.*'),
  ),
)

/** The lines of the README's blocks in this language. */
function blocks(language: string): string {
  return [...read('README.md').matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, 'gms'))]
    .map(([, text]) => text)
    .join('')
}
const README_QUERIES = blocks('promql')
  .trim()
  .split('\n')
  .filter((line) => !line.startsWith('#'))

const MISSING =
  ['prometheus', 'promtool'].some((name) => spawnSync(name, ['--version']).status !== 0) &&
  'SKIPPED: prometheus is missing (Debian: apt-get install prometheus)'
if (MISSING !== false) console.log(MISSING)

/** Of programs that are done before collecting garbage is worth its time. */
const ENVIRONMENT = environment({ GOGC: 'off' })

function promtool(...args: readonly string[]): void {
  const options = { encoding: 'utf8', cwd: FOLDER, env: ENVIRONMENT } as const
  const { status, stdout, stderr } = spawnSync('promtool', args, options)
  assert.equal(status, 0, stdout + stderr)
}

test('alerts: each says what to do, and has a case in which it fires', () => {
  assert.ok(ALERT_NAMES.length > 10 && new Set(ALERT_NAMES).size === ALERT_NAMES.length)
  const cases = read('alerts.test.yaml')
  for (const [at, rule] of ALERTS.split(/^ +- alert: /m)
    .slice(1)
    .entries()) {
    const name = ALERT_NAMES[at] ?? ''
    for (const member of [
      /^ {10}summary: "./m,
      /^ {10}action: >-$/m,
      /severity: (?:critical|warning)/,
    ])
      assert.match(rule, member, name)
    assert.ok(cases.includes(`exp_samples: [{ labels: '{alertname="${name}"}', value: 1 }]`), name)
  }
  assert.equal(
    cases.match(/^ {2}- name: /gm)?.length,
    cases.match(/exp_samples: \[\] \}$/gm)?.length,
  )
})

test('alerts: promtool accepts them and runs their tests', { skip: MISSING }, () => {
  promtool('check', 'rules', 'alerts.yaml')
  promtool('test', 'rules', 'alerts.test.yaml')
})

test('dashboard: each panel has its own id, title and place', () => {
  assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length)
  assert.equal(new Set(panels.map(({ title }) => title)).size, panels.length)
  const cells = panels.flatMap(({ gridPos: { x, y, w, h } }) => {
    // Grafana's grid has 24 columns.
    assert.ok(x >= 0 && x + w <= 24)
    return Array.from({ length: w * h }, (_, i) => `${x + (i % w)} ${y + Math.floor(i / w)}`)
  })
  assert.equal(new Set(cells).size, cells.length)
  for (const { targets } of panels)
    assert.equal(new Set(targets.map(({ refId }) => refId)).size, targets.length)
})

const SCRAPE_MS = 200

/** A Prometheus that scrapes the service as the README says, but much more often. */
async function startPrometheus(t: TestContext, adminPort: number): Promise<number> {
  const directory = await temporaryDirectory()
  const file = join(directory, 'prometheus.yaml')
  const config = blocks('yaml')
    .replace('127.0.0.1:8081', `127.0.0.1:${adminPort}`)
    .replace('/etc/prometheus', FOLDER)
  writeFileSync(
    file,
    `global: { scrape_interval: ${SCRAPE_MS}ms, evaluation_interval: ${SCRAPE_MS}ms }\n${config}`,
  )
  promtool('check', 'config', file)
  const port = await freePort()
  const child = spawn(
    'prometheus',
    [
      `--config.file=${file}`,
      `--storage.tsdb.path=${join(directory, 'data')}`,
      `--web.listen-address=127.0.0.1:${port}`,
      '--log.level=error',
    ],
    { env: ENVIRONMENT, stdio: ['ignore', 'inherit', 'inherit'] },
  )
  t.after(() => child.kill('SIGKILL'))
  return port
}

/** What Prometheus answers; undefined while it starts. */
async function ask(port: number, path: string): Promise<unknown> {
  const reply = await call(port, { path: `/api/v1/${path}`, token: undefined }).catch(
    () => undefined,
  )
  if (reply?.status === 503 || !reply) return undefined
  assert.equal(reply.status, 200, reply.text)
  // Prometheus' documented envelope.
  return (reply.json() as { readonly data: unknown }).data
}

interface Rule {
  readonly name: string
  readonly query: string
  readonly state: string
  readonly health: string
}

async function rulesOf(port: number): Promise<readonly Rule[]> {
  // Prometheus' documented answer.
  const data = (await ask(port, 'rules')) as
    | { readonly groups: readonly { readonly rules: readonly Rule[] }[] }
    | undefined
  return data?.groups.flatMap(({ rules }) => rules) ?? []
}

/** A finite value of a query, if it has one. */
async function valueOf(port: number, query: string): Promise<number | undefined> {
  // Prometheus' documented answer for an instant vector.
  const data = (await ask(port, `query?query=${encodeURIComponent(query)}`)) as
    | { readonly result: readonly { readonly value: readonly [number, string] }[] }
    | undefined
  return data?.result.map(({ value: [, text] }) => Number(text)).find(Number.isFinite)
}

/** A service whose keys come from a URL, so that it has every metric, and a token for it. */
async function startFetching(
  t: TestContext,
): Promise<RunningService & { readonly bearer: string }> {
  const { privateKey, publicKey } = readPair(generateKeyPairSync('ed25519', PEM))
  const keys = JSON.stringify({ keys: [publicKey.export({ format: 'jwk' })] })
  const url = `${await serving(t, (_req, res) => res.end(keys))}/keys`
  const seconds = Math.floor(Date.now() / 1000)
  const bearer = signToken(
    { alg: 'EdDSA' },
    { iss: ISSUER, aud: AUDIENCE, sub: 'alice', exp: seconds + 600 },
    (input) => sign(null, Buffer.from(input), privateKey),
  )
  return { ...(await startService(t, { keys: { kind: 'url', url } })), bearer }
}

/** Creates, lists and unknown paths, several a scrape, until the test ends. */
async function traffic(port: number, bearer: string, ended: () => boolean): Promise<void> {
  for (let id = 0; !ended(); id++) {
    await post(port, { id, name: 'Fern' }, { token: bearer })
    await call(port, { token: bearer })
    await call(port, { path: '/trees', token: bearer })
    await sleep(SCRAPE_MS / 4)
  }
}

test('monitoring: on a healthy service every query has a value', { skip: MISSING }, async (t) => {
  const { port, adminPort, bearer } = await startFetching(t)
  const prometheus = await startPrometheus(t, adminPort)
  let ended = false
  t.after(() => (ended = true))
  const sent = traffic(port, bearer, () => ended)
  let rules: readonly Rule[] = []
  // Inactive is also what was not evaluated yet, whose health is unknown.
  await until('Prometheus has evaluated the alerts, and none is raised', async () => {
    await sleep(SCRAPE_MS)
    rules = await rulesOf(prometheus)
    return (
      rules.length > 0 && rules.every((rule) => `${rule.state} ${rule.health}` === 'inactive ok')
    )
  })
  assert.deepEqual(
    rules.map(({ name }) => name),
    ALERT_NAMES,
  )
  // What an alert compares is a value too.
  const compared = rules.map(({ query }) => query.replaceAll(/ (?:==|>) [\d.]+/g, ''))
  const queries = [...README_QUERIES, ...compared, ...PANEL_QUERIES]
  assert.ok(README_QUERIES.length >= 4 && queries.length >= 40)
  for (const query of queries) {
    let value: number | undefined
    await until(`${query} has a value`, async () => {
      value = await valueOf(prometheus, query)
      if (value === undefined) await sleep(SCRAPE_MS)
      return value !== undefined
    })
    t.diagnostic(`${value}  ${query}`)
  }
  ended = true
  await sent
})
