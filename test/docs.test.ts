import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { VARIABLES } from '../dist/config.js'
import { conditions } from '../dist/errors.js'
import { call } from './support/http.ts'
import { scrape } from './support/metrics.ts'
import { startService } from './support/service.ts'

/** The README for operators. */
const OPERATING = 'scripts/deploy/README.md'

function read(name: string): string {
  return readFileSync(new URL(`../${name}`, import.meta.url), 'utf8')
}

/** The cells of the table whose first heading is given. */
function table(text: string, heading: string): string[][] {
  const lines = text.split('\n')
  const start = lines.findIndex((line) => line.startsWith(`| ${heading} |`))
  assert.notEqual(start, -1, `there is no table of ${heading}`)
  const rows: string[][] = []
  for (const line of lines.slice(start + 2)) {
    if (!line.startsWith('|')) break
    rows.push(
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    )
  }
  return rows
}

test('the README lists the configuration as the code reads it', () => {
  const expected = VARIABLES.map(([name, fallback, meaning]) => [
    `\`${name}\``,
    fallback === '' ? '' : `\`${fallback}\``,
    meaning,
  ])
  assert.deepEqual(table(read(OPERATING), 'variable'), expected)
})

test('the README lists exactly the error values of the catalogue', () => {
  const expected = [...conditions.values()].map(([error]) => String(error)).sort()
  assert.deepEqual(
    table(read('README.md'), 'status').flatMap(([status = '', errors = '']) =>
      [...errors.matchAll(/\b(\d{3})\d{2}\b/g)].map(([error, digits]) => {
        assert.equal(digits, status, `${error} is not an error of ${status}`)
        return error
      }),
    ),
    expected,
  )
})

test('the documents name the versions that are installed', () => {
  // The project's own manifest, which has these members.
  const { version, dependencies } = JSON.parse(read('package.json')) as {
    version: string
    dependencies: Record<string, string>
  }
  assert.match(read('CHANGELOG.md'), new RegExp(`^## ${version.replaceAll('.', '\\.')}$`, 'm'))
  assert.deepEqual(
    table(read('SECURITY.md'), 'package').map(([name, pinned]) => [name, pinned]),
    Object.entries(dependencies).map(([name, pinned]) => [`\`${name}\``, pinned]),
  )
})

test('every metric that the README names is there, and but for two that matter less it names all', async (t) => {
  // Keys that are fetched, so that their metrics are there: the age only once a set was had, which
  // needs an issuer.
  const { port, adminPort } = await startService(t, {
    keys: { kind: 'url', url: 'http://127.0.0.1:1/keys' },
  })
  await call(port)
  const { types } = await scrape(adminPort)
  const known = [...types.keys(), 'plant_store_key_set_age_seconds']
  const named = table(read(OPERATING), 'metric').flatMap(([names = '']) =>
    names.split(', ').map((name) => name.replaceAll('`', '')),
  )
  for (const name of named) assert.ok(known.includes(name), `${name} is in the table only`)
  const untold = ['process_heap_bytes', 'plant_store_snapshot_bytes']
  assert.deepEqual([...named, ...untold].sort(), known.sort())
  const anywhere =
    (read('README.md') + read(OPERATING)).match(
      /\b(?:http_server|plant_store|process|nodejs)_[a-z_]+/g,
    ) ?? []
  for (const name of anywhere)
    assert.ok(known.includes(name.replace(/_(?:bucket|sum|count)$/, '')), `${name} does not exist`)
})
