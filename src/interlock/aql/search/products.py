"""What well-known products are about: who names one, or whose server is called so, means these.

Facts about products that everybody knows, as a line each: the product's names, `:`, its things.
"""

from __future__ import annotations

from typing import Final

PRODUCTS: Final = """
github gh octocat: repository commit pull_request issue branch code fork gist workflow release
gitlab: repository commit merge_request issue branch code pipeline project
bitbucket: repository commit pull_request branch code pipeline
gitee codeberg gitea: repository commit pull_request issue branch code
git: repository commit branch diff code stash tag merge version history
slack: channel message team workspace thread emoji reaction chat
discord: server channel message chat guild role
teams msteams: channel message chat meeting team
telegram whatsapp signal line wechat: message chat contact group
lark feishu dingtalk: message chat document calendar
zoom meet webex: meeting call video recording
gmail: email inbox message label draft thread attachment mail
outlook: email inbox calendar message contact mail
office365 ms365 microsoft365 m365: email calendar file excel onedrive outlook teams
sendgrid mailgun resend postmark mailchimp: email send template campaign bounce domain
twilio vonage: sms text message phone call voice
gcal google_calendar: event meeting calendar appointment schedule
gdrive google_drive onedrive dropbox box: file folder document share drive cloud
gsheets google_sheets: spreadsheet sheet cell row
gdocs google_docs: document text page
google_workspace: email calendar document spreadsheet drive
notion: page database block workspace note wiki document
obsidian: note vault markdown tag link
evernote onenote keep: note notebook
confluence: page wiki space document
jira: issue ticket sprint board epic project bug story
linear: issue ticket project team cycle bug
asana: task project workspace section
trello: board card list task checklist
todoist ticktick things: task todo project reminder list
clickup monday: task board item project workspace
basecamp shortcut youtrack: task project issue
airtable baserow nocodb: table record base field row database
smartsheet coda: sheet row table document
zendesk freshdesk intercom helpscout: ticket customer support conversation
servicenow: incident ticket request
hubspot salesforce pipedrive: contact deal company lead customer crm account
stripe: payment invoice customer charge refund subscribe price product coupon balance billing
paypal square adyen razorpay mercadopago braintree: payment invoice order refund transaction
paddle chargebee lemonsqueezy: subscribe customer price product invoice
xero quickbooks freshbooks: invoice contact account payment bill accounting
plaid: bank account transaction
shopify woocommerce magento bigcommerce: product order customer store inventory cart shop
amazon ebay etsy: product order shop
postgres postgresql mysql mariadb mssql oracle: table database sql row query schema
sqlite duckdb: table database sql row query
supabase neon planetscale turso: database table sql project branch migration
mongodb mongo: database collection document query aggregate index
redis memcached valkey: key value cache
elasticsearch opensearch elastic: index search document query cluster
meilisearch algolia typesense: index search document
clickhouse bigquery snowflake redshift motherduck: sql query table dataset warehouse database
dynamodb cassandra: table item database key
firebase firestore: database document collection auth app
neo4j: graph node relation query cypher
qdrant pinecone chroma weaviate milvus: vector collection embedding search similar index
kafka rabbitmq: topic queue message
s3 minio gcs: bucket object file storage
aws amazon_web_services: cloud bucket instance lambda region
azure: cloud resource subscribe storage vm
gcp google_cloud: cloud project instance run storage
cloudflare: dns domain zone worker cache
vercel netlify heroku railway render fly: deploy app project site log environment
digitalocean hetzner linode: droplet server domain database app
docker podman: container image volume network compose
kubernetes k8s kubectl helm: pod cluster namespace deploy service node container
terraform pulumi: infrastructure resource stack provider module
ansible: playbook host
jenkins circleci buildkite travis: build job pipeline test log
sentry bugsnag rollbar: error exception issue crash event release
datadog newrelic dynatrace honeycomb: metric monitor log dashboard alert trace
grafana prometheus: dashboard metric alert panel query datasource
pagerduty opsgenie: incident on_call alert schedule escalate
splunk loki kibana: log search query
sonarqube snyk semgrep: vulnerability code quality security scan issue
puppeteer playwright selenium: browser page website click screenshot navigate fill form
browserbase hyperbrowser steel stagehand: browser session page website click navigate screenshot
chrome devtools chromium: browser page console network performance tab
firecrawl apify crawl4ai scrapy: scrape crawl website page extract
brave tavily exa duckduckgo ddg kagi serper searxng bing: web_search internet online result
google: web_search
perplexity: web_search ask answer research
fetch curl http: url page website request download
wikipedia wiki: article encyclopedia page summary
arxiv pubmed semantic_scholar: paper article research publication study
hackernews hn reddit: story post comment news
twitter x mastodon bluesky: tweet post timeline follower
linkedin: profile job post company people
facebook instagram tiktok: post photo video
youtube: video channel transcribe subtitle comment playlist
spotify: music song track playlist artist album play
google_maps gmaps mapbox amap baidu_map osm: place direction route address distance geocode
airbnb booking expedia: accommodation stay listing hotel
figma sketch: design file component layout
canva miro excalidraw tldraw drawio lucid: diagram board design drawing
cloudinary imgix: image video asset upload transform
openai anthropic gemini claude gpt: model prompt text generate
dalle stable_diffusion midjourney everart imagen replicate: image generate picture prompt
elevenlabs: voice speech audio text_to_speech sound
huggingface hf: model dataset space paper
langfuse phoenix langsmith wandb: trace prompt dataset experiment span
homeassistant hass home_assistant: light device sensor switch automation home thermostat
hue: light lamp
strava garmin fitbit: activity run workout ride
nasa: space picture asteroid planet
coinbase binance coingecko coincap evm ethereum solana bitcoin: crypto coin price wallet token
alpaca alpha_vantage yahoo_finance polygon: stock price quote market portfolio
wordpress contentful sanity strapi directus ghost: post page content entry article cms blog
n8n zapier make ifttt: workflow automation node
postman insomnia: api request collection
auth0 okta clerk keycloak: user login application role authenticate
launchdarkly unleash: feature_flag flag toggle
segment mixpanel amplitude posthog: event analytic user funnel
ga4 google_analytics: visitor traffic analytic report page
memory mem0 zep knowledge_graph: remember fact entity relation recall note
filesystem fs: file folder directory path disk
sequential_thinking: think reason plan step thought
time datetime clock: timezone convert date
weather openmeteo accuweather openweather: forecast temperature rain
shell desktop_commander terminal: command process run file
excel xlsx: spreadsheet sheet cell workbook
word docx: document paragraph text
powerpoint pptx: slide presentation
pdf: document page
xcode ios_simulator mobile android adb: app device simulator phone build
storybook shadcn mui chakra: component ui design
leetcode: problem coding contest
testrail browserstack: test case run
ahrefs semrush: seo keyword backlink
calendly: meeting booking schedule
typeform surveymonkey: form survey response
docusign: signature document envelope
greenhouse lever: candidate job
bamboohr workday: employee leave
zotero: citation paper library
anki: card deck flashcard
plex jellyfin: movie show library
"""
