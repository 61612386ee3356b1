import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { test, type TestContext } from 'node:test'
import { LONG, skipWithout } from '../support/scale.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { conditions } from '../support/verdict.ts'

/** Opens a page in Chromium, whose own files are in a new folder. */
async function browse(t: TestContext, page: string): Promise<void> {
  const home = await temporaryDirectory()
  const options = ['--headless', '--no-sandbox', '--disable-gpu', `--user-data-dir=${home}`]
  const env = { PATH: process.env['PATH'], HOME: home }
  const browser = spawn('chromium', [...options, page], { env, stdio: 'ignore', detached: true })
  t.after(async () => {
    // All processes of the browser.
    process.kill(-(browser.pid ?? 0), 'SIGKILL')
    await once(browser, 'close')
  })
}

/** What tools for traces and errors add to a page's requests: OpenTelemetry, Sentry, Datadog. */
const TOOLS = {
  traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
  tracestate: 'a=b',
  baggage: 'sentry-environment=production,sentry-release=1',
  'sentry-trace': '4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1',
  'x-datadog-trace-id': '8448787451930364727',
  'x-datadog-parent-id': '67667974448284343',
  'x-datadog-origin': 'rum',
  'X-Requested-With': 'XMLHttpRequest',
}

/** What a page of a client does with the interface, and reports to its own server. */
const PAGE = `<script type="module">
  const { services, token } = await (await fetch('/settings')).json()
  const send = async (url, plant, bearer = token) => {
    const own = { Authorization: 'Bearer ' + bearer, 'Content-Type': 'application/json' }
    const headers = { ...own, ...${JSON.stringify(TOOLS)} }
    const init = plant ? { method: 'POST', body: JSON.stringify(plant) } : {}
    try {
      const response = await fetch(url, { headers, ...init })
      const names = ['link', 'www-authenticate', 'request-id']
      const [link, challenge, id] = names.map((name) => response.headers.get(name))
      return [response.status, link, challenge, id !== null, await response.json()]
    } catch (error) {
      return error.name
    }
  }
  const use = async (plants) => {
    const report = [
      await send(plants, { id: 1, name: 'Fern' }),
      await send(plants, { id: 2, name: 'Moss' }),
      await send(plants, { id: 2, name: 'Elm' }),
      await send(plants, undefined, 'a.b.c'),
      await send(plants, undefined, 'x'.repeat(17_000)),
      await send(plants + '?limit=1'),
    ]
    const [, next] = /<(.*)>/.exec(report.at(-1)[1]) ?? []
    return [...report, next && await send(new URL(next, plants))]
  }
  const body = JSON.stringify(await Promise.all(services.map(use)))
  await fetch('/report', { method: 'POST', body })
</script>`

const MISSING = 'chromium is missing (Debian: apt-get install chromium)'
const CHROMIUM = { skip: skipWithout(MISSING, 'chromium', '--version') || LONG }

/** What the page reports of services that list these origins. */
async function reportsOf(
  t: TestContext,
  originsOf: (page: string) => readonly (readonly string[])[],
): Promise<readonly (readonly unknown[])[]> {
  let settings: object = {}
  let report = ''
  const page = await serving(t, (req, res) => {
    if (req.url === '/report') req.on('data', (text) => (report += text)).on('end', () => res.end())
    else if (req.url === '/settings') res.end(JSON.stringify(settings))
    else res.setHeader('Content-Type', 'text/html').end(PAGE)
  })
  const services: string[] = []
  for (const corsOrigins of originsOf(page))
    services.push(`http://127.0.0.1:${(await startService(t, { corsOrigins })).port}/plants`)
  settings = { services, token: token('alice') }
  await browse(t, page)
  await until('the page reports', () => report.endsWith(']]'))
  // What the page wrote.
  return JSON.parse(report) as (readonly unknown[])[]
}

test('browser: a page of a listed origin creates and lists, others cannot', CHROMIUM, async (t) => {
  const other = 'https://other.example'
  const [several, one, all, unlisted] = await reportsOf(t, (page) => [
    [other, page],
    [page],
    ['*'],
    [other],
  ])
  const refusal = (condition: 'idTaken' | 'tokenInvalid' | 'headersTooLarge') => {
    const [error, message] = conditions.get(condition) ?? assert.fail()
    return { error, message }
  }
  const challenge = 'Bearer realm="plants", error="invalid_token"'
  // Of several origins it is unknown which one sent what could not be read.
  const unread = [431, null, null, true, refusal('headersTooLarge')]
  for (const [report = [], tooLong] of [
    [several, 'TypeError'],
    [one, unread],
    [all, unread],
  ] as const) {
    const [link] = report.flatMap((each) => (Array.isArray(each) && each[1] ? [each[1]] : []))
    assert.match(String(link), /^<plants\?limit=1&after=.+>; rel="next"$/)
    assert.deepEqual(report, [
      [200, null, null, true, { name: 'Fern' }],
      [200, null, null, true, { name: 'Moss' }],
      [409, null, null, true, refusal('idTaken')],
      [401, null, challenge, true, refusal('tokenInvalid')],
      tooLong,
      [200, link, null, true, [{ name: 'Fern' }]],
      [200, null, null, true, [{ name: 'Moss' }]],
    ])
  }
  assert.deepEqual(unlisted, [...Array<string>(6).fill('TypeError'), null])
})
