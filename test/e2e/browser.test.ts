import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { conditions } from '../../dist/errors.js'
import { call } from '../support/http.ts'
import { freePort } from '../support/ports.ts'
import { ROOT } from '../support/release.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'

interface Proxy {
  readonly file: string
  /** The whole configuration, on a port, with the lines of the example. */
  readonly configure: (port: number, lines: string) => string
  readonly args: (folder: string) => readonly string[]
}

const TEMPORARY = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']

const PROXIES: Readonly<Record<'nginx' | 'caddy', Proxy>> = {
  nginx: {
    file: 'nginx-cors.conf',
    configure: (port, lines) => `daemon off; master_process off; pid nginx.pid; error_log stderr;
      events {}
      http {
        access_log off;
        ${TEMPORARY.map((name) => `${name}_temp_path ${name};`).join(' ')}
        server { listen 127.0.0.1:${port}; ${lines} }
      }`,
    args: (folder) => ['-p', folder, '-c', 'config'],
  },
  caddy: {
    file: 'cors.caddy',
    configure: (port, lines) => `{
        admin off
        auto_https off
      }
      http://127.0.0.1:${port} {
        bind 127.0.0.1
        ${lines}
      }`,
    args: (folder) => ['run', '--adapter', 'caddyfile', '--config', join(folder, 'config')],
  },
}

const isThere = (name: string): boolean => spawnSync(name, ['-h']).status === 0

/** Replaces what an operator is asked to replace, in the one place where it is. */
function named(lines: string, example: string, own: string): string {
  const parts = lines.split(example)
  assert.equal(parts.length, 2, example)
  return parts.join(own)
}

/** A proxy with the lines of its example, in front of a service. Returns its port. */
async function startProxy(
  t: TestContext,
  name: keyof typeof PROXIES,
  service: number,
  origin: string,
): Promise<number> {
  const { file, configure, args } = PROXIES[name]
  const folder = await temporaryDirectory()
  const port = await freePort()
  const example = readFileSync(join(ROOT, 'scripts/deploy', file), 'utf8')
  const lines = named(example, '127.0.0.1:8080', `127.0.0.1:${service}`)
  const config = configure(port, named(lines, 'https://app.example', origin))
  writeFileSync(join(folder, 'config'), config)
  const env = { PATH: process.env['PATH'], HOME: folder }
  const proxy = spawn(name, args(folder), { env, stdio: 'ignore' })
  t.after(() => proxy.kill('SIGKILL'))
  await until(`${name} listens`, () =>
    call(port).then(
      () => true,
      () => false,
    ),
  )
  return port
}

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

/** What a page of a client does with the interface, and reports to its own server. */
const PAGE = `<script type="module">
  const { direct, proxied, token } = await (await fetch('/settings')).json()
  const send = async (url, plant) => {
    const headers = { Authorization: 'Bearer ' + token, 'Content-Type': 'application/json' }
    const init = plant ? { method: 'POST', body: JSON.stringify(plant) } : {}
    try {
      const response = await fetch(url, { headers, ...init })
      return [response.status, response.headers.get('link'), await response.json()]
    } catch (error) {
      return error.name
    }
  }
  const report = [
    await send(direct, { id: 1, name: 'Oak' }),
    await send(proxied, { id: 1, name: 'Fern' }),
    await send(proxied, { id: 2, name: 'Moss' }),
    await send(proxied, { id: 2, name: 'Elm' }),
    await send(proxied + '?limit=1'),
  ]
  const [, next] = /<(.*)>/.exec(report.at(-1)[1])
  report.push(await send(new URL(next, proxied)))
  await fetch('/report', { method: 'POST', body: JSON.stringify(report) })
</script>`

for (const name of ['nginx', 'caddy'] as const) {
  const skip =
    !(isThere(name) && isThere('chromium')) &&
    `SKIPPED: ${name} or chromium is missing (Debian: apt-get install ${name} chromium)`
  if (skip !== false) console.log(skip)

  test(`browser: ${name} lets a page of another origin in`, { skip }, async (t) => {
    const { port } = await startService(t)
    let settings: object = {}
    let report = ''
    const page = await serving(t, (req, res) => {
      if (req.url === '/report')
        req.on('data', (text) => (report += text)).on('end', () => res.end())
      else if (req.url === '/settings') res.end(JSON.stringify(settings))
      else res.setHeader('Content-Type', 'text/html').end(PAGE)
    })
    const proxy = await startProxy(t, name, port, page)
    const urlOf = (port: number): string => `http://127.0.0.1:${port}/plants`
    settings = { direct: urlOf(port), proxied: urlOf(proxy), token: token('alice') }
    await browse(t, page)
    await until('the page reports', () => report.endsWith(']'))
    // What the page wrote.
    const [direct, ...proxied] = JSON.parse(report) as unknown[]
    assert.equal(direct, 'TypeError', 'without a proxy the browser refuses')
    const [error, message] = conditions.get('idTaken') ?? assert.fail()
    const [, link] = (proxied[3] ?? []) as readonly string[]
    assert.deepEqual(proxied, [
      [200, null, { name: 'Fern' }],
      [200, null, { name: 'Moss' }],
      [409, null, { error, message }],
      [200, link, [{ name: 'Fern' }]],
      [200, null, [{ name: 'Moss' }]],
    ])
    assert.match(link ?? '', /^<\?limit=1&after=.+>; rel="next"$/)
  })
}
