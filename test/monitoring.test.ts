import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { environment } from './support/launch.ts'
import { ROOT } from './support/release.ts'
import { LONG, skipWithout } from './support/scale.ts'
import { temporaryDirectory } from './support/service.ts'

const FOLDER = join(ROOT, 'scripts/deploy')
const read = (name: string): string => readFileSync(join(FOLDER, name), 'utf8')

const ALERTS = read('alerts.yaml')
const ALERT_NAMES = [...ALERTS.matchAll(/- alert: (\w+)$/gm)].map(([, name = '']) => name)

const PROMETHEUS = 'prometheus is missing (Debian: apt-get install prometheus)'
const MISSING = skipWithout(PROMETHEUS, 'promtool', '--version')

function promtool(...args: readonly string[]): void {
  // It is done before collecting garbage is worth its time.
  const options = { encoding: 'utf8', cwd: FOLDER, env: environment({ GOGC: 'off' }) } as const
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

test('alerts: promtool accepts them, with the configuration', { skip: MISSING }, async () => {
  const file = join(await temporaryDirectory(), 'prometheus.yaml')
  const [, scrape = ''] = /^```yaml\n(scrape_configs:[^]*?)^```/m.exec(read('README.md')) ?? []
  writeFileSync(file, scrape.replace('/etc/prometheus', FOLDER))
  promtool('check', 'config', file)
})

test('alerts: promtool runs their tests', { skip: LONG || MISSING }, () => {
  promtool('test', 'rules', 'alerts.test.yaml')
})
