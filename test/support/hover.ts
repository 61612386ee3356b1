import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { pathToFileURL } from 'node:url'

interface Message {
  readonly id?: number
  readonly method?: string
  readonly result?: { readonly contents?: { readonly value?: string } } | null
  readonly error?: unknown
}

/**
 * What an editor shows for the first place of each text in a file: TypeScript's language server is
 * asked (LSP 3.17). The file need not exist; the packages beside it must.
 */
export async function hovers(
  tsc: string,
  path: string,
  source: string,
  texts: readonly string[],
): Promise<string[]> {
  const server = spawn(tsc, ['--lsp', '-stdio'], { stdio: ['pipe', 'pipe', 'ignore'] })
  const waiting = new Map<number, (message: Message) => void>()
  const send = (message: object): void => {
    const body = JSON.stringify({ jsonrpc: '2.0', ...message })
    server.stdin.write(`Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`)
  }
  const ask = (method: string, params: object): Promise<Message> => {
    const id = waiting.size
    send({ id, method, params })
    return new Promise((resolve) => waiting.set(id, resolve))
  }
  let unread = Buffer.alloc(0)
  server.stdout.on('data', (chunk: Buffer) => {
    unread = Buffer.concat([unread, chunk])
    for (;;) {
      const [head, length] =
        /^Content-Length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n/.exec(unread.toString('latin1')) ?? []
      const end = (head?.length ?? 0) + Number(length)
      if (head === undefined || unread.length < end) return
      // The protocol's own form.
      const message = JSON.parse(unread.subarray(head.length, end).toString()) as Message
      unread = unread.subarray(end)
      // A request of the server; null suits all that it may ask.
      if (message.method !== undefined && message.id !== undefined)
        send({ id: message.id, result: null })
      else if (message.id !== undefined) waiting.get(message.id)?.(message)
    }
  })
  const uri = pathToFileURL(path).href
  await ask('initialize', { processId: process.pid, rootUri: null, capabilities: {} })
  send({ method: 'initialized', params: {} })
  const textDocument = { uri, languageId: 'typescript', version: 1, text: source }
  send({ method: 'textDocument/didOpen', params: { textDocument } })
  const found: string[] = []
  for (const text of texts) {
    const before = source.slice(0, source.indexOf(text)).split('\n')
    const position = { line: before.length - 1, character: before.at(-1)?.length ?? 0 }
    const { result } = await ask('textDocument/hover', { textDocument: { uri }, position })
    found.push(result?.contents?.value ?? '')
  }
  await ask('shutdown', {})
  send({ method: 'exit' })
  await once(server, 'close')
  return found
}
