import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { claims, jwk, p256, signed } from './auth/tokens.ts'
import { call, post } from './support/http.ts'
import { environment } from './support/launch.ts'
import { freePort } from './support/ports.ts'
import { ROOT } from './support/release.ts'
import { LONG } from './support/scale.ts'
import { startService, temporaryDirectory } from './support/service.ts'
import { serving } from './support/serving.ts'
import { until } from './support/time.ts'
import { AUDIENCE, ISSUER } from './support/tokens.ts'

const FOLDER = join(ROOT, 'scripts/deploy')
const read = (name: string): string => readFileSync(join(FOLDER, name), 'utf8')

const ALERTS = read('alerts.yaml')
const ALERT_NAMES = [...ALERTS.matchAll(/- alert: (\w+)$/gm)].map(([, name = '']) => name)

interface Panel {
  readonly targets: readonly { readonly expr: string }[]
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
  const rules = ALERTS.split(/^ +- alert: /m).slice(1)
  const members = [/^ {10}summary: "./m, /^ {10}action: >-$/m, /severity: (?:critical|warning)/]
  for (const [at, rule] of rules.entries()) {
    const name = ALERT_NAMES[at] ?? ''
    for (const member of members) assert.match(rule, member, name)
    assert.ok(cases.includes(`exp_samples: [{ labels: '{alertname="${name}"}', value: 1 }]`), name)
  }
  const quiet = cases.match(/exp_samples: \[\] \}$/gm)
  assert.equal(cases.match(/^ {2}- name: /gm)?.length, quiet?.length)
})

test('alerts: promtool accepts them and runs their tests', { skip: MISSING }, () => {
  promtool('check', 'rules', 'alerts.yaml')
  promtool('test', 'rules', 'alerts.test.yaml')
})

const SCRAPE_MS = 200

/** A Prometheus that scrapes the service as the README says, but much more often. */
async function startPrometheus(t: TestContext, adminPort: number): Promise<number> {
  const directory = await temporaryDirectory()
  const file = join(directory, 'prometheus.yaml')
  const config = blocks('yaml')
    .replace('127.0.0.1:8081', `127.0.0.1:${adminPort}`)
    .replace('/etc/prometheus', FOLDER)
  const intervals = `scrape_interval: ${SCRAPE_MS}ms, evaluation_interval: ${SCRAPE_MS}ms`
  writeFileSync(file, `global: { ${intervals} }\n${config}`)
  promtool('check', 'config', file)
  const port = await freePort()
  const storage = `--storage.tsdb.path=${join(directory, 'data')}`
  const options = [`--web.listen-address=127.0.0.1:${port}`, '--log.level=error']
  const child = spawn('prometheus', [`--config.file=${file}`, storage, ...options], {
    env: ENVIRONMENT,
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  t.after(() => child.kill('SIGKILL'))
  return port
}

/** What Prometheus answers in one of its documented forms; undefined while it starts. */
async function ask<T>(port: number, path: string): Promise<T | undefined> {
  const asked = call(port, { path: `/api/v1/${path}`, token: undefined })
  const reply = await asked.catch(() => undefined)
  if (reply?.status === 503 || !reply) return undefined
  assert.equal(reply.status, 200, reply.text)
  return (reply.json() as { readonly data: T }).data
}

interface Rules {
  readonly groups: readonly {
    readonly rules: readonly Readonly<Record<'name' | 'query' | 'state' | 'health', string>>[]
  }[]
}

/** A finite value of a query, if it has one. */
async function valueOf(port: number, query: string): Promise<number | undefined> {
  interface Vector {
    readonly result: readonly { readonly value: readonly [number, string] }[]
  }
  const vector = await ask<Vector>(port, `query?query=${encodeURIComponent(query)}`)
  return vector?.result.map(({ value: [, text] }) => Number(text)).find(Number.isFinite)
}

const NAME = 'monitoring: on a healthy service every query has a value'

// Names of metrics and the rules of alerts are tested without it, above and in docs.test.ts.
test(NAME, { skip: LONG || MISSING }, async (t) => {
  // Keys from a URL, so that the service has every metric.
  const keys = JSON.stringify({ keys: [jwk(p256.publicKey, { kid: 'one' })] })
  const url = `${await serving(t, (_req, res) => res.end(keys))}/keys`
  const { port, adminPort } = await startService(t, { jwksUrl: url })
  const now = Math.floor(Date.now() / 1000)
  const payload = claims({ iss: ISSUER, aud: AUDIENCE, iat: now, exp: now + 600 })
  const bearer = { token: signed('ES256', p256.privateKey, { kid: 'one' }, payload) }
  let id = 0
  /** Creates, lists and unknown paths, several a scrape. */
  const traffic = async (): Promise<void> => {
    for (const last = id + 4; id < last; id++) {
      await post(port, { id, name: 'Fern' }, bearer)
      await call(port, bearer)
      await call(port, { ...bearer, path: '/trees' })
      await sleep(SCRAPE_MS / 4)
    }
  }
  const prometheus = await startPrometheus(t, adminPort)
  let rules: Rules['groups'][number]['rules'] = []
  // Inactive is also what was not evaluated yet, whose health is unknown.
  await until('Prometheus has evaluated the alerts, and none is raised', async () => {
    await traffic()
    rules = (await ask<Rules>(prometheus, 'rules'))?.groups.flatMap((group) => group.rules) ?? []
    const isFine = rules.every((rule) => `${rule.state} ${rule.health}` === 'inactive ok')
    return rules.length > 0 && isFine
  })
  const names = rules.map(({ name }) => name)
  assert.deepEqual(names, ALERT_NAMES)
  // What an alert compares is a value too.
  const compared = rules.map(({ query }) => query.replaceAll(/ (?:==|>) [\d.]+/g, ''))
  const queries = [...README_QUERIES, ...compared, ...PANEL_QUERIES]
  assert.ok(README_QUERIES.length >= 4 && queries.length >= 40)
  for (const query of queries)
    await until(`${query} has a value`, async () => {
      if ((await valueOf(prometheus, query)) !== undefined) return true
      await traffic()
      return false
    })
})
